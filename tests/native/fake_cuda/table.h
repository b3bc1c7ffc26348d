#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace fake_cuda {

/// Handles that are never given twice, so that a stale one is always noticed.
template <class Handle, class Object>
class Table {
 public:
  Handle add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    last_ += 16;
    const auto handle = reinterpret_cast<Handle>(last_);
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<Object> find(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = found->second;
    objects_.erase(found);
    return object;
  }
  template <class Predicate>
  void remove_if(Predicate&& predicate) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return predicate(*entry.second); });
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return objects_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Handle, std::shared_ptr<Object>> objects_;
  std::uintptr_t last_ = 0x1000;
};

}  // namespace fake_cuda
