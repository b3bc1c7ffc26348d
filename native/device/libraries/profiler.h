#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "device/libraries/nvtx.h"

namespace hvdtune {

/// A profiler that is attached to this process and records NVTX ranges, such as Nsight Systems.
/// hvdtune's ranges are in the domain "hvdtune". Any thread. Without a profiler there is no object
/// of this class, and no cost.
class Profiler {
 public:
  /// The profiler whose library is at `path`. A process has only one: that of the first successful
  /// call, until the process ends. Throws Error(kInvalidArgument) if the library cannot be loaded,
  /// is not for NVTX 3, or declines.
  static const Profiler& attach(const std::string& path);

  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

 private:
  friend class ProfilerSpan;
  friend class ProfilerRange;

  explicit Profiler(const std::string& path);

  // Null if the profiler does not want the calls.
  nvtx::StartRange start_ = nullptr;
  nvtx::EndRange end_ = nullptr;
  nvtx::PushRange push_ = nullptr;
  nvtx::PopRange pop_ = nullptr;
  nvtx::Domain domain_ = nullptr;
};

/// A range of one thread's work, as long as this object exists; spans nest. Profilers attribute to
/// it the work that the thread enqueues on a GPU meanwhile.
class ProfilerSpan {
 public:
  /// `profiler`: may be null, for none. `name` is read only here.
  ProfilerSpan(const Profiler* profiler, const char* name);
  ~ProfilerSpan();
  ProfilerSpan(const ProfilerSpan&) = delete;
  ProfilerSpan& operator=(const ProfilerSpan&) = delete;

 private:
  const Profiler* profiler_;
};

/// A range that may begin on one thread and end on another, and overlap others. The destructor ends
/// it, unless end() has.
class ProfilerRange {
 public:
  ProfilerRange() = default;
  /// Parameters as for ProfilerSpan.
  ProfilerRange(const Profiler* profiler, const char* name);
  ProfilerRange(ProfilerRange&& other) noexcept
      : profiler_(std::exchange(other.profiler_, nullptr)), id_(other.id_) {}
  ProfilerRange& operator=(ProfilerRange&& other) noexcept {
    end();
    profiler_ = std::exchange(other.profiler_, nullptr);
    id_ = other.id_;
    return *this;
  }
  ~ProfilerRange() { end(); }

  /// Ends the range now, if it has not ended.
  void end();

 private:
  const Profiler* profiler_ = nullptr;  // null: nothing to end
  std::uint64_t id_ = 0;
};

}  // namespace hvdtune
