#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace hvdtune::faces::tensorflow {

/// Who may use a name now, of those who want it at once: an iteration of a loop whose predecessor
/// is not over yet, or nodes of two graphs that are called the same. Any thread.
template <typename Call>
class Turns {
 public:
  /// Whether it is the call's turn; otherwise end() will return it.
  bool begin(std::uint32_t process_set, const std::string& name, Call call) {
    const std::lock_guard lock(mutex_);
    const auto [found, first] = waiting_.try_emplace(key(process_set, name));
    if (!first) found->second.push_back(std::move(call));
    return first;
  }

  /// The turn is over: the call whose turn is next, or an empty one.
  Call end(std::uint32_t process_set, const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(key(process_set, name));
    if (found->second.empty()) {
      waiting_.erase(found);
      return {};
    }
    Call next = std::move(found->second.front());
    found->second.pop_front();
    return next;
  }

 private:
  static std::string key(std::uint32_t process_set, const std::string& name) {
    return process_set == 0 ? name : std::to_string(process_set) + '\n' + name;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::deque<Call>> waiting_;
};

}  // namespace hvdtune::faces::tensorflow
