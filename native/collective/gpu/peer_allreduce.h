#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collective/gpu/peer_buffers.h"
#include "device/kernels/device_kernels.h"
#include "device/stream.h"

namespace hvdtune {

/// Short allreduces among GPUs of one host with peer access, one member per GPU: each is a single
/// kernel. The members' kernels synchronise in GPU memory; their processes do not synchronise (as
/// IpcCommunicator's do, twice per operation). So a call costs its thread one launch, and a member
/// that is ahead goes on enqueuing.
///
/// A round: each block copies this member's data into this member's buffer, writes the round's
/// number into every other member's buffer (a system-wide release store), waits for their numbers
/// in its own (acquire loads), and reduces all members' parts in member order. Buffers have two
/// halves. A member that has seen all numbers of round r+1 knows that all have ended the kernel of
/// round r, as a member's kernels run one after the other. So no member writes a half in round r+2
/// that another still reads in round r.
///
/// Kernels that wait for other GPUs must, like NCCL's, run on all GPUs at the same time. This is
/// ensured as follows. Each member has its own GPU. All members enqueue all kernels that wait,
/// including NCCL's, in the order of the schedule, so an earlier one never waits for a later one. A
/// kernel has at most 32 blocks, so it takes no more room than NCCL's kernel would in its stream. A
/// block waits for one block of each other member, so a kernel ends even if its blocks do not all
/// run at once.
///
/// abort() sets a word of page-locked memory, which waiting blocks check regularly: a kernel that
/// waits for a dead member ends without a result.
///
/// One thread at a time, except failure(), give_up() and abort().
class PeerAllreduce {
 public:
  /// The longest message, in bytes.
  static constexpr std::size_t kLongest = std::size_t{1} << 20;

  /// Collective over the members of `control`: 2 to 16, each with its own process and GPU. Throws
  /// Error(kInvalidArgument), the same text on all members, if these GPUs cannot wait for each
  /// other; Error(kAborted) if the job is aborted.
  static std::unique_ptr<PeerAllreduce> connect(Communicator& control,
                                                const std::shared_ptr<const Device>& device,
                                                std::shared_ptr<DeviceKernels> kernels);

  /// Waits until the others have read this member's data, for 2 s at most; they need not be in
  /// their destructors. This member's enqueued work must be done or aborted before.
  ~PeerAllreduce();
  PeerAllreduce(const PeerAllreduce&) = delete;
  PeerAllreduce& operator=(const PeerAllreduce&) = delete;

  /// Like DeviceCommunicator::allreduce(), for all types and all operators except kAverage and
  /// kAdasum, a factor for sums only, and at most kLongest bytes. Never waits. Throws
  /// Error(kAborted).
  void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype, ReduceOp op,
                 double factor, CudaStream stream);

  [[nodiscard]] std::optional<std::string> failure() const;
  /// Makes enqueued work end, with undefined results, once its stream reaches it. Does not wait.
  /// Any thread; may be called more than once.
  void give_up();
  /// The same, and waits until that work has ended, for a second at most.
  void abort();

 private:
  PeerAllreduce(Communicator& control, const std::shared_ptr<const Device>& device,
                std::shared_ptr<DeviceKernels> kernels);

  void share(Communicator& control);
  [[nodiscard]] bool all_have_left(const DeviceStream& stream) const;

  std::shared_ptr<const Device> device_;
  std::shared_ptr<DeviceKernels> kernels_;
  int size_;
  int index_;
  std::optional<PeerBuffers> buffers_;  ///< MeetingFlags, then two halves
  PinnedMemory host_;                   ///< MeetingWork::over, then room to read MeetingFlags
  DeviceEvent last_;                    ///< the end of the enqueued work
  CudaStream stream_ = nullptr;         ///< its stream
  std::uint64_t round_ = 0;
  std::uint64_t blocks_ = 0;  ///< blocks of the last round
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace hvdtune
