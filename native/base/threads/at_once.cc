#include "base/threads/at_once.h"

#include <system_error>
#include <thread>

#include "base/threads/signals_blocked.h"

namespace hvdtune {

void at_once(const std::vector<std::function<void()>>& calls) {
  const SignalsBlocked blocked;
  std::vector<std::jthread> threads;
  threads.reserve(calls.size());
  for (const auto& call : calls) {
    try {
      threads.emplace_back(call);
    } catch (const std::system_error&) {  // no more threads allowed
      call();
    }
  }
}

}  // namespace hvdtune
