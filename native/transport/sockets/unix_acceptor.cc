#include "transport/sockets/unix_acceptor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "transport/sockets/unix_socket.h"

namespace hvdtune {

Fd UnixAcceptor::next(Nanos deadline) {
  // After the deadline, connections that were there in time are still served, but not an endless
  // stream of others.
  for (std::size_t late = 0;;) {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    Nanos until = deadline;
    for (const Silent& silent : silent_) {
      entries.push_back({silent.socket.get(), POLLIN, 0});
      until = std::min(until, silent.deadline);
    }
    const Nanos left = std::clamp<Nanos>(until - monotonic_now(), 0, kSecond);
    const int ready =
        poll(entries.data(), entries.size(), static_cast<int>(left / kMillisecond) + (left > 0));
    auto entry = entries.begin();
    const auto speaks = std::find_if(silent_.begin(), silent_.end(), [&](const Silent&) {
      return (++entry)->revents != 0 && ready > 0;
    });
    if (speaks != silent_.end()) {
      Fd socket = std::move(speaks->socket);
      silent_.erase(speaks);
      return socket;
    }
    if (ready > 0 && entries.front().revents != 0) let_in();
    const Nanos now = monotonic_now();
    silent_.remove_if([now](const Silent& silent) { return silent.deadline <= now; });
    if (now >= deadline && (ready <= 0 || ++late > kMostSilent)) return {};
  }
}

void UnixAcceptor::let_in() {
  Fd socket = unix_socket::accept(listener_, monotonic_now());
  if (!socket.valid() || unix_socket::peer_identity(socket).uid != getuid()) return;
  if (silent_.size() >= kMostSilent) silent_.pop_front();
  silent_.push_back({std::move(socket), monotonic_now() + kSilence});
}

}  // namespace hvdtune
