#include "engine/execution/gpus.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace hvdtune {

const std::shared_ptr<const CudaDriver>& Gpus::driver() {
  if (driver_) return driver_;
  if (options_.cuda.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "tensors on GPUs cannot be used: " + options_.no_cuda);
  }
  driver_ = CudaDriver::open(options_.cuda);
  return driver_;
}

std::shared_ptr<const Device> Gpus::use_locked(int index) {
  if (in_use_ && in_use_->index() == index) return in_use_;
  if (in_use_) {
    throw Error(ErrorKind::kInvalidArgument,
                "the tensors of one process must be on one GPU: this process's are on GPU " +
                    std::to_string(in_use_->index()) + ", not on GPU " + std::to_string(index));
  }
  in_use_ = Device::open(driver(), index);
  events_.emplace(in_use_, false);
  timed_events_.emplace(in_use_, true);
  attach_profiler();
  return in_use_;
}

void Gpus::attach_profiler() {
  if (options_.profiler.empty()) return;
  try {
    profiler_ = &Profiler::attach(options_.profiler);
  } catch (const Error& error) {
    HVD_LOG(kWarning) << "no NVTX ranges (NVTX_INJECTION64_PATH): " << error.what();
  }
}

std::shared_ptr<const Device> Gpus::use(int index) {
  const std::lock_guard lock(mutex_);
  return use_locked(index);
}

void Gpus::try_use(int index) {
  const std::lock_guard lock(mutex_);
  if (in_use_) return;
  try {
    use_locked(index);
  } catch (const Error&) {  // tensors will say why, if this process ever has any on a GPU
  }
}

std::shared_ptr<const Device> Gpus::in_use() {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::shared_ptr<OnDevice> Gpus::accept(const wire::Request& request,
                                       std::span<const CudaStream> streams) {
  auto accepted = std::make_shared<OnDevice>();
  try {
    const std::lock_guard lock(mutex_);
    accepted->device = use_locked(request.device);
    for (const CudaStream stream : streams) {
      if (accepted->device->capturing(stream)) {
        throw Error(
            ErrorKind::kInvalidArgument,
            "its stream is being captured into a CUDA graph, and what other ranks do cannot "
            "be part of one; submit it outside of the capture");
      }
      accepted->ready.emplace_back(events_->take())->record(stream);
    }
    if (profiler() != nullptr) {
      accepted->queued = ProfilerRange(profiler(), ("QUEUE " + request.name).c_str());
    }
  } catch (const Error& error) {
    throw Error(error.kind(), "tensor " + request.name + ": " + error.what());
  }
  return accepted;
}

int Gpus::device_of(CudaPointer pointer) {
  const std::lock_guard lock(mutex_);
  if (pointer == 0) return in_use_ ? in_use_->index() : 0;
  const int index = driver()->device_of(pointer);
  if (index < 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "an array in GPU memory is needed; this one is in host memory");
  }
  return index;
}

void Gpus::warn_staged(int rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(warned_, true)) return;
  HVD_LOG_RANK(kWarning, rank) << "tensors on GPUs travel through host memory: " << why;
}

SharedEvent Gpus::event(bool timed) {
  const std::lock_guard lock(mutex_);
  return (timed ? timed_events_ : events_)->take();
}

}  // namespace hvdtune
