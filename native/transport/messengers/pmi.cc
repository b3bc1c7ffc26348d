#include "transport/messengers/pmi.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace hvdtune {
namespace {

constexpr int kPollMs = 1;
constexpr std::size_t kLongest = 1024;  // of an answer, as in Hydra

}  // namespace

bool Pmi::barrier(const std::function<void()>& meanwhile) {
  return ask("cmd=barrier_in\n", "cmd=barrier_out", meanwhile);
}

bool Pmi::leave() {
  return ask("cmd=finalize\n", "cmd=finalize_ack", [] {});
}

bool Pmi::ask(const std::string& request, const std::string& answer,
              const std::function<void()>& meanwhile) {
  for (std::size_t sent = 0; sent < request.size();) {
    const ssize_t done = send(fd_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (done < 0 && errno != EINTR) return false;
    if (done > 0) sent += static_cast<std::size_t>(done);
  }
  std::string line;
  while (line.size() < kLongest) {
    pollfd polled{fd_, POLLIN, 0};
    const int ready = poll(&polled, 1, kPollMs);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) {
      meanwhile();
      continue;
    }
    char next = '\0';
    const ssize_t got = read(fd_, &next, 1);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (got < 0) continue;
    // Newer versions add the result: "cmd=barrier_out rc=0".
    if (next == '\n') return line == answer || line.rfind(answer + " ", 0) == 0;
    line += next;
  }
  return false;
}

}  // namespace hvdtune
