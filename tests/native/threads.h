#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace hvdtune::testing {

/// Runs body(0) … body(count - 1), each on a thread of its own, and waits for all of them. Throws
/// Failure with everything that went wrong.
inline void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> failures(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      try {
        body(index);
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(index)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (std::size_t index = 0; index < failures.size(); ++index) {
    if (failures[index].empty()) continue;
    all += "\n  thread " + std::to_string(index) + ": " + failures[index];
  }
  if (!all.empty()) throw Failure(all);
}

}  // namespace hvdtune::testing
