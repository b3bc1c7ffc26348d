#pragma once

#include <pthread.h>

#include <csignal>

namespace hvdtune {

/// While an object of this class exists, the thread that created it receives no signals. Threads
/// that it starts meanwhile never receive any. Signals thus go to the program's own threads. In
/// these threads, a file that exceeds RLIMIT_FSIZE causes an error, not SIGXFSZ.
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
