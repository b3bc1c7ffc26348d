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

  /// What the timeline calls an allreduce that goes within each host first, and so between them.
  /// Static storage.
  [[nodiscard]] virtual const char* activity() const = 0;

  /// `share` is reduced in place, in the order of `stream`. As DeviceCommunicator::allreduce()
  /// without a factor; may wait for the stream. Throws as that does.
  virtual void allreduce(CudaPointer share, std::size_t count, DType dtype, ReduceOp op,
                         CudaStream stream) = 0;
  /// As DeviceCommunicator's.
  virtual void enroll(const DevicePiece& memory) = 0;
  virtual void withdraw(const DevicePiece& memory) = 0;
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;
  /// From now on calls throw, those included whose wait for the stream ends. Does not wait. Any
  /// thread; before abort(), where something else is aborted that calls wait for.
  virtual void give_up() {}
  virtual void abort() = 0;
};

/// By a communicator of the column's members.
std::unique_ptr<ColumnAllreduce> make_column_on_gpus(std::unique_ptr<DeviceCommunicator> members);

/// Through page-locked memory of the hosts, between which `members` carries it. The caller waits
/// for its stream, and for the other members until the job is over. `members` outlives it, and
/// belongs to its thread. `why_not`: why it need not wait for its stream any more, if so: the job
/// is over, or what comes before has failed.
std::unique_ptr<ColumnAllreduce> make_column_through_hosts(
    Communicator& members, std::shared_ptr<const Device> device,
    std::function<std::optional<std::string>()> why_not);

}  // namespace hvdtune
