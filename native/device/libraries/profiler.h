#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "device/libraries/nvtx.h"

namespace hvdtune {

/// A profiler that is attached to this process and takes NVTX ranges, such as Nsight Systems. Ours
/// are in the domain "hvdtune". Any thread. Without one there is none of these, and nothing to pay.
class Profiler {
 public:
  /// The one whose library is at `path`: a process has one, which the first call that goes well
  /// decides, and which stays until the process ends. Throws Error(kInvalidArgument) where the
  /// library cannot be loaded, is not one for NVTX 3, or declines.
  static const Profiler& attach(const std::string& path);

  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

 private:
  friend class ProfilerSpan;
  friend class ProfilerRange;

  explicit Profiler(const std::string& path);

  // Null where the profiler does not want to know.
  nvtx::StartRange start_ = nullptr;
  nvtx::EndRange end_ = nullptr;
  nvtx::PushRange push_ = nullptr;
  nvtx::PopRange pop_ = nullptr;
  nvtx::Domain domain_ = nullptr;
};

/// What one thread does, as long as this lives; they are nested. Profilers count to it what the
/// thread enqueues on a GPU meanwhile.
class ProfilerSpan {
 public:
  /// `profiler`: none where it is null. `name` is read here only.
  ProfilerSpan(const Profiler* profiler, const char* name);
  ~ProfilerSpan();
  ProfilerSpan(const ProfilerSpan&) = delete;
  ProfilerSpan& operator=(const ProfilerSpan&) = delete;

 private:
  const Profiler* profiler_;
};

/// Something that may begin on one thread and end on another, beside others of its kind. It ends
/// with this, if not before.
class ProfilerRange {
 public:
  ProfilerRange() = default;
  /// As ProfilerSpan.
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

  /// Now, if it has not ended.
  void end();

 private:
  const Profiler* profiler_ = nullptr;  // null: nothing is to be ended
  std::uint64_t id_ = 0;
};

}  // namespace hvdtune
