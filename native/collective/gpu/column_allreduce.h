#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "collective/communicator.h"
#include "collective/gpu/device_communicator.h"
#include "device/device.h"

namespace hvdtune {

/// Reduces a share in the memory of GPUs among one member of every host, a column (host_columns.h).
/// All members call it in the same order with the same counts, each for one stream of its GPU.
class ColumnAllreduce {
 public:
  virtual ~ColumnAllreduce() = default;

  /// The timeline's name of an allreduce that runs within each host first and uses this between
  /// hosts. Static storage.
  [[nodiscard]] virtual const char* activity() const = 0;

  /// Reduces `share` in place, in the order of `stream`. Like DeviceCommunicator::allreduce()
  /// without a factor, also in what it throws; may wait for the stream.
  virtual void allreduce(CudaPointer share, std::size_t count, DType dtype, ReduceOp op,
                         CudaStream stream) = 0;
  /// See DeviceCommunicator::enroll().
  virtual void enroll(const DevicePiece& memory) = 0;
  virtual void withdraw(const DevicePiece& memory) = 0;
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;
  /// From now on calls throw, including calls in progress once their wait for the stream ends. Does
  /// not wait. Any thread; call it before aborting anything else that calls wait for.
  virtual void give_up() {}
  virtual void abort() = 0;
};

/// Uses a communicator of the column's members.
std::unique_ptr<ColumnAllreduce> make_column_on_gpus(std::unique_ptr<DeviceCommunicator> members);

/// Copies through page-locked memory of the hosts; `members` exchanges it between them. Calls wait
/// for their stream, and for the other members until the job is over. `members` must outlive it,
/// and belongs to its thread. `why_not`: if a call must stop waiting for its stream, the reason:
/// the job is over, or earlier work in the stream has failed.
std::unique_ptr<ColumnAllreduce> make_column_through_hosts(
    Communicator& members, std::shared_ptr<const Device> device,
    std::function<std::optional<std::string>()> why_not);

}  // namespace hvdtune
