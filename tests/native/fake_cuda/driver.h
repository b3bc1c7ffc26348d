#pragma once

#include <array>
#include <string>

#include "fake_cuda.h"

namespace fake_cuda {

using hvdtune::CudaContext;
using hvdtune::CudaEvent;
using hvdtune::CudaFunction;
using hvdtune::CudaModule;

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<Mark> mark;  ///< of the last record
};

struct Module {
  std::shared_ptr<Context> context;
  std::string source;
};

struct Function {
  std::shared_ptr<Context> context;
  std::string name;
};

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

inline constexpr int kMostDevices = 8;

/// Everything there is. It is never destroyed: threads of streams may run until the process ends.
struct Driver {
  std::mutex mutex;
  std::atomic<bool> started{false};
  std::array<Memory, kMostDevices> memory;
  PinnedTable pinned;
  struct Primary {
    int retained = 0;
    CudaContext handle = nullptr;
  };
  std::array<Primary, kMostDevices> primaries;
  Table<CudaContext, Context> contexts;
  Table<CudaStream, Stream> streams;
  Table<CudaEvent, Event> events;
  Table<CudaModule, Module> modules;
  Table<CudaFunction, Function> functions;
};

Driver& driver();
int devices();
/// The calling thread's context; null: none.
std::shared_ptr<Context> current();
/// kSuccess, with the current context, where one is current and not ruined.
CudaResult enter(std::shared_ptr<Context>& context);
/// Where bytes of any GPU or of page-locked memory really are; null: nowhere.
std::byte* any_memory(CudaPointer pointer, std::size_t bytes);

}  // namespace fake_cuda
