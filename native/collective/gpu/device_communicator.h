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
/// A call throws Error(kAborted), one sentence, if the communicator was aborted, the job is
/// aborted, or a member fails while the call waits for it. It throws Error(kInvalidArgument),
/// before it enqueues anything, for a combination that supports() rejects.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int index() const = 0;
  /// The timeline's name of an operation's exchange, e.g. "NCCL_ALLREDUCE". Static storage.
  [[nodiscard]] virtual const char* activity(OpKind kind) const = 0;

  /// Whether allreduce() and reducescatter() accept this combination. Only Sum of floating types
  /// allows a `factor` other than 1. Not kAverage (the caller folds 1/n into the factor), not
  /// kAdasum.
  [[nodiscard]] virtual bool supports(DType dtype, ReduceOp op, double factor) const = 0;

  /// An allreduce is cheapest if its number of elements is a multiple of this.
  [[nodiscard]] virtual std::size_t granule() const { return 1; }

  /// out[i] = sum over members of factor * in[i] (other operators: without factor). `out` may be
  /// `in`. bool: Sum and Max are OR, Product and Min are AND, of bytes 0 and 1.
  virtual void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                         ReduceOp op, double factor, CudaStream stream) = 0;
  /// `in` is read on the root only; `out` may be `in`.
  virtual void broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                         CudaStream stream) = 0;
  /// Every member contributes `bytes_each`; `out` receives size() times as much, in member order.
  /// `in` may be this member's place in `out`.
  virtual void allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                         CudaStream stream) = 0;
  /// `in` has size() shares of `count_each`; `out` receives this member's share of the result, and
  /// may be its place in `in`.
  virtual void reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each, DType dtype,
                             ReduceOp op, double factor, CudaStream stream) = 0;
  /// Sends send[m] to member m and receives receive[m] from it; size() pieces each, whose lengths
  /// match those of the other side. For alltoall and for allgather of unequal parts. Pieces to send
  /// and to receive must not overlap, except a member's own, which may be the same.
  virtual void exchange(std::span<const DevicePiece> send, std::span<const DevicePiece> receive,
                        CudaStream stream) = 0;

  /// Makes this communicator's use of `memory` cheaper from now on; other memory may still be used.
  /// Call withdraw() before the memory is freed. Does nothing if there is nothing to gain. Does not
  /// wait for other members.
  virtual void enroll(const DevicePiece& memory) = 0;
  /// The same, for memory of equal length on all members, which collectives use at the same offset
  /// on all of them. Collective: all members call it at the same place among their calls, and
  /// nothing else may use `control` meanwhile. Throws like other calls.
  virtual void enroll_together(const DevicePiece& memory, Communicator& control) {
    (void)control;
    enroll(memory);
  }
  virtual void withdraw(const DevicePiece& memory) = 0;

  /// Why the enqueued work will not be done, if a failure is known; one sentence. Any thread.
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;
  /// Ends the enqueued work, with undefined results, and makes calls throw from now on. Returns
  /// after none of that work runs any more. Any thread; may be called more than once.
  virtual void abort() = 0;
};

}  // namespace hvdtune
