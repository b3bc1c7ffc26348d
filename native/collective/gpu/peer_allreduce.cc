#include "collective/gpu/peer_allreduce.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "collective/exchange_texts.h"

namespace hvdtune {
namespace {

constexpr std::size_t kFlagBytes = (sizeof(MeetingFlags) + 255) / 256 * 256;
constexpr std::size_t kWordBytes = 256;  // of `over`, so that nothing else shares its cache line
constexpr Nanos kFarewellPatience = 2 * kSecond;
constexpr Nanos kAbortPatience = kSecond;
constexpr auto kPause = std::chrono::microseconds(100);

/// Why these members cannot wait for each other on their GPUs, if they cannot; the same on all of
/// them. Collective.
std::string obstacle(Communicator& control, const Device& device, const DeviceKernels& kernels) {
  std::int64_t uuid[2];
  static_assert(sizeof uuid == sizeof(CudaUuid));
  std::memcpy(uuid, &device.uuid(), sizeof uuid);
  const auto all = control.exchange({uuid[0], uuid[1], kernels.compiled() ? 1 : 0});
  const auto members = all.size() / 3;
  if (members < 2) return "there is one member";
  if (members > kMostKernelSources) {
    return "there are more than " + std::to_string(kMostKernelSources) + " members";
  }
  for (std::size_t later = 0; later < members; ++later) {
    if (all[3 * later + 2] == 0) {
      return "member " + std::to_string(later) + " has no kernels of hvdtune";
    }
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      if (all[3 * later] != all[3 * earlier] || all[3 * later + 1] != all[3 * earlier + 1])
        continue;
      return "members " + std::to_string(earlier) + " and " + std::to_string(later) +
             " are on one GPU";
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<PeerAllreduce> PeerAllreduce::connect(Communicator& control,
                                                      const std::shared_ptr<const Device>& device,
                                                      std::shared_ptr<DeviceKernels> kernels) {
  const std::string why = obstacle(control, *device, *kernels);
  if (!why.empty()) throw Error(ErrorKind::kInvalidArgument, why);
  std::string problem;
  std::unique_ptr<PeerAllreduce> made;
  try {
    made.reset(new PeerAllreduce(control, device, std::move(kernels)));
  } catch (const Error& error) {
    problem = error.what();
  }
  all_or_none(control, problem);
  made->share(control);
  return made;
}

PeerAllreduce::PeerAllreduce(Communicator& control, const std::shared_ptr<const Device>& device,
                             std::shared_ptr<DeviceKernels> kernels)
    : device_(device),
      kernels_(std::move(kernels)),
      size_(control.size()),
      index_(control.index()),
      host_(device, kWordBytes + sizeof(MeetingFlags)),
      last_(device, false) {
  std::memset(host_.data(), 0, kWordBytes);
}

/// Collective. No member writes another's flags before all are zero.
void PeerAllreduce::share(Communicator& control) {
  buffers_.emplace(control, device_, kFlagBytes + 2 * kLongest);
  std::string problem;
  try {
    const DeviceStream stream(device_);
    device_->clear(buffers_->at(index_), sizeof(MeetingFlags), stream.handle());
    stream.synchronize();
  } catch (const Error& error) {
    problem = error.what();
  }
  all_or_none(control, problem);
}

PeerAllreduce::~PeerAllreduce() {
  if (round_ == 0 || failure()) return;
  // All have begun the last round, since this member's kernel has ended; some may still read its
  // buffer and write its flags.
  const Nanos deadline = monotonic_now() + kFarewellPatience;
  try {
    const DeviceStream stream(device_);
    while (!(last_.done() && all_have_left(stream)) && monotonic_now() < deadline) {
      std::this_thread::sleep_for(kPause);
    }
  } catch (const Error&) {  // the GPU cannot be used any more
  }
}

bool PeerAllreduce::all_have_left(const DeviceStream& stream) const {
  device_->copy(host_.pointer() + kWordBytes, buffers_->at(index_), sizeof(MeetingFlags),
                stream.handle());
  stream.synchronize();
  const auto& flags = *reinterpret_cast<const MeetingFlags*>(
      static_cast<const std::byte*>(host_.data()) + kWordBytes);
  for (std::uint64_t block = 0; block < blocks_; ++block) {
    for (int member = 0; member < size_; ++member) {
      if (flags.left[block][member] < round_) return false;
    }
  }
  return true;
}

void PeerAllreduce::allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                              ReduceOp op, double factor, CudaStream stream) {
  const std::size_t bytes = count * dtype_size(dtype);
  HVD_CHECK(bytes <= kLongest);
  if (bytes == 0) return;
  if (const auto why = failure()) throw Error(ErrorKind::kAborted, "IPC_ALLREDUCE: " + *why);
  if (round_ > 0 && stream != stream_) wait_on(stream, last_);
  stream_ = stream;
  ++round_;
  MeetingWork work{};
  work.in = in;
  work.over = host_.pointer();
  work.round = round_;
  work.self = index_;
  work.reduce.out = out;
  work.reduce.bytes = bytes;
  work.reduce.scale = factor;
  work.reduce.sources = size_;
  for (int member = 0; member < size_; ++member) {
    work.flags[member] = buffers_->at(member);
    work.reduce.source[member] = buffers_->at(member) + kFlagBytes + round_ % 2 * kLongest;
  }
  try {
    blocks_ = kernels_->meet(work, dtype, op, stream);
    last_.record(stream);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);  // the others wait for this round, so it is the last
    if (failure_.empty()) failure_ = error.what();
    throw;
  }
}

std::optional<std::string> PeerAllreduce::failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return {};
  return failure_;
}

void PeerAllreduce::give_up() {
  // Without the lock: a thread that launches holds it and may wait until a kernel ends.
  std::atomic_ref(*static_cast<unsigned*>(host_.data())).store(1);
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = "the exchange between GPUs was aborted";
}

void PeerAllreduce::abort() {
  give_up();
  const Nanos deadline = monotonic_now() + kAbortPatience;
  try {
    while (!last_.done() && monotonic_now() < deadline) std::this_thread::sleep_for(kPause);
  } catch (const Error&) {  // the GPU does nothing any more
  }
}

}  // namespace hvdtune
