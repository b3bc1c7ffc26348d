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

/// Short allreduces among GPUs of one host that reach each other's memory, one member a GPU: one
/// kernel each, and nothing but it. The members' kernels meet in memory of the GPUs; hosts do not
/// (as IpcCommunicator's do, twice an operation), so a call costs its thread one launch, and who is
/// ahead goes on enqueuing.
///
/// A round: each block copies what this member brings into this member's buffer, writes the round's
/// number into a place of every other member's (a store that releases, system-wide), waits for
/// theirs in its own (loads that acquire), and reduces everybody's part in member order. Buffers
/// have two halves. Who has seen all numbers of round r+1 knows that all have ended the kernel of
/// round r, as a member's kernels run one after the other; so nobody writes a half in round r+2
/// that somebody still reads in round r.
///
/// Kernels that wait for other GPUs need what NCCL's need: a place on every GPU at the same time.
/// Each member has a GPU of its own; all members enqueue everything that waits, NCCL's collectives
/// too, in the order of the schedule, so what comes first waits for nothing that comes later; and a
/// kernel of 32 blocks at most takes no more room than NCCL's would have taken in its stream. A
/// block waits for one block of each other member, so a kernel whose blocks do not all run at once
/// still ends.
///
/// abort() sets a word of page-locked memory, at which waiting blocks look now and then: a kernel
/// that waits for a dead member ends without a result.
///
/// One thread at a time, except failure(), give_up() and abort().
class PeerAllreduce {
 public:
  /// The longest message, in bytes.
  static constexpr std::size_t kLongest = std::size_t{1} << 20;

  /// Collective over the members of `control`: 2 to 16, each in a process and on a GPU of its own.
  /// Throws Error(kInvalidArgument), the same text on all members, where there cannot be one;
  /// Error(kAborted) when the job is aborted.
  static std::unique_ptr<PeerAllreduce> connect(Communicator& control,
                                                const std::shared_ptr<const Device>& device,
                                                std::shared_ptr<DeviceKernels> kernels);

  /// Waits until the others have read what this member has brought, for 2 s at most; it does not
  /// matter whether they come here, too. What this member has enqueued is done, or was aborted.
  ~PeerAllreduce();
  PeerAllreduce(const PeerAllreduce&) = delete;
  PeerAllreduce& operator=(const PeerAllreduce&) = delete;

  /// As DeviceCommunicator::allreduce(); all types and operators but kAverage and kAdasum, a factor
  /// of sums only, at most kLongest bytes. Never waits. Throws Error(kAborted).
  void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype, ReduceOp op,
                 double factor, CudaStream stream);

  [[nodiscard]] std::optional<std::string> failure() const;
  /// What is enqueued ends, with undefined results, once its stream comes to it. Does not wait. Any
  /// thread; more than once.
  void give_up();
  /// … and returns when that is so, or after a second, if the stream does not come to it.
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
  PinnedMemory host_;                   ///< MeetingWork::over, then room to look at MeetingFlags
  DeviceEvent last_;                    ///< the end of what is enqueued
  CudaStream stream_ = nullptr;         ///< … where
  std::uint64_t round_ = 0;
  std::uint64_t blocks_ = 0;  ///< of the last round
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace hvdtune
