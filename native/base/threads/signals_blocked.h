#pragma once

#include <pthread.h>

#include <csignal>

namespace hvdtune {

/// While one lives, the thread that made it gets no signals, and neither do threads that it starts
/// meanwhile, for as long as they run: signals are the program's business and go to its own
/// threads. A file beyond RLIMIT_FSIZE is an error in them then, not SIGXFSZ.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace hvdtune
