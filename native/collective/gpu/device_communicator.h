#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/op_kind.h"
#include "collective/communicator.h"
#include "device/kernels/device_piece.h"

namespace hvdtune {

/// Collectives on device memory: the members of a process set, each with one GPU.
///
/// All members call the same operations in the same order with matching sizes; the coordinator's
/// schedule guarantees it. A call enqueues on `stream` (of this member's GPU) and returns; the work
/// is done when the stream gets there. Calls may wait for other members to make the same call, for
/// a bounded time, but never for the stream. One thread at a time, except failure() and abort().
/// Buffers stay until the work is done. Results are bitwise equal on all members.
///
/// A call throws Error(kAborted), one sentence, when the communicator was aborted, the job is
/// aborted, or a member fails while it waits for it; Error(kInvalidArgument) for what
/// supports() denies, before anything is enqueued.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int index() const = 0;
  /// What the timeline calls an operation's exchange, e.g. "NCCL_ALLREDUCE". Static storage.
  [[nodiscard]] virtual const char* activity(OpKind kind) const = 0;

  /// Whether allreduce() and reducescatter() take this combination. `factor` other than 1 goes with
  /// Sum of floating types only. Not kAverage (the caller folds 1/n into the factor), not kAdasum.
  [[nodiscard]] virtual bool supports(DType dtype, ReduceOp op, double factor) const = 0;

  /// An allreduce of a multiple of so many elements costs least.
  [[nodiscard]] virtual std::size_t granule() const { return 1; }

  /// out[i] = sum over members of factor * in[i] (other operators: without factor). `out` may be
  /// `in`. bool: Sum and Max are OR, Product and Min are AND, of bytes 0 and 1.
  virtual void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                         ReduceOp op, double factor, CudaStream stream) = 0;
  /// `in` is read on the root only; `out` may be `in`.
  virtual void broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                         CudaStream stream) = 0;
  /// Every member brings `bytes_each`; `out` takes size() times as much, in member order. `in` may
  /// be this member's place in `out`.
  virtual void allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                         CudaStream stream) = 0;
  /// `in` has size() shares of `count_each`; `out` takes this member's share of the result, and may
  /// be its place in `in`.
  virtual void reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each, DType dtype,
                             ReduceOp op, double factor, CudaStream stream) = 0;
  /// send[m] goes to member m, receive[m] comes from it; size() pieces each, whose lengths match
  /// those of the other side. For alltoall and for allgather of unequal parts. Pieces that are sent
  /// and received do not overlap, except a member's own, which may be the same.
  virtual void exchange(std::span<const DevicePiece> send, std::span<const DevicePiece> receive,
                        CudaStream stream) = 0;

  /// Memory whose use by this communicator costs less from now on; no need to read or write only
  /// such memory. It is taken back before the memory is freed. Does nothing where there is nothing
  /// to gain. Does not wait for other members.
  virtual void enroll(const DevicePiece& memory) = 0;
  /// The same, for memory that is equally long on all members and that collectives use at the same
  /// place on all of them. Collective: all members do it at the same place among their calls, and
  /// nothing else goes over `control` meanwhile. Throws as a call does.
  virtual void enroll_together(const DevicePiece& memory, Communicator& control) {
    (void)control;
    enroll(memory);
  }
  virtual void withdraw(const DevicePiece& memory) = 0;

  /// Why what is enqueued will not be done, if anything is known to have failed, one sentence. Any
  /// thread.
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;
  /// What is enqueued ends, with undefined results, and calls throw from now on. Returns when
  /// nothing of it runs any more. Any thread; more than once.
  virtual void abort() = 0;
};

}  // namespace hvdtune
