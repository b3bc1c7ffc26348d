#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "fake_gpu.h"

// What the fake profiler (fake_cuda/libnvtx.cc) has noted.

namespace hvdtune::testing {

/// A range of a thread, or one that may have begun on another.
struct SeenRange {
  int thread;
  std::string name;    ///< with the domain before it
  std::string within;  ///< the names of the thread's ranges around it, "/" between them
};

struct SeenRanges {
  std::vector<SeenRange> spans;   ///< pushed and popped
  std::vector<SeenRange> ranges;  ///< started and ended; of the thread on which they began
};

/// Since the last time. Fails where a range was misused or has not ended.
inline SeenRanges take_ranges() {
  void* const library = dlopen(fake_path("libnvtx.so").c_str(), RTLD_NOW);
  CHECK(library != nullptr);
  const auto take =
      reinterpret_cast<std::size_t (*)(char*, std::size_t)>(dlsym(library, "fake_nvtx_take"));
  const auto open = reinterpret_cast<std::size_t (*)()>(dlsym(library, "fake_nvtx_open"));
  std::string text(std::size_t{1} << 20, '\0');
  text.resize(take(text.data(), text.size()));
  SeenRanges seen;
  std::map<int, std::vector<std::string>> stacks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CHECK_MSG(!line.starts_with("misuse"), line);
    std::istringstream words(line);
    int thread = 0;
    std::string verb;
    words >> thread >> verb;
    std::vector<std::string>& stack = stacks[thread];
    std::uint64_t id = 0;
    if (verb == "start" || verb == "end") words >> id;
    std::string name;
    std::getline(words >> std::ws, name);
    if (verb == "pop") stack.pop_back();
    std::string within;
    for (const std::string& outer : stack) within += (within.empty() ? "" : "/") + outer;
    if (verb == "push") {
      seen.spans.push_back({thread, name, within});
      stack.push_back(name);
    }
    if (verb == "start") seen.ranges.push_back({thread, name, within});
  }
  for (const auto& [thread, stack] : stacks) CHECK_EQ(stack.size(), 0U);
  CHECK_EQ(open(), 0U);
  return seen;
}

}  // namespace hvdtune::testing
