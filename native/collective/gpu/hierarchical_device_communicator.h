#pragma once

#include <memory>

#include "collective/gpu/column_allreduce.h"
#include "collective/gpu/partial_device_communicator.h"

namespace hvdtune {

/// Allreduces of GPUs of several hosts, each of which has as many members: a reducescatter among
/// the members of each host, an allreduce of each share among its column (host_columns.h), and an
/// allgather on each host. Between hosts each GPU so moves its own share, all at the same time.
///
/// Sums are those of NCCL in that order: the same bits on all members, but not those of another
/// way. What does not divide into equal shares, less than an element for each member of a host,
/// goes among all members, and so does every other operation. For one stream, its phases in order.
class HierarchicalDeviceCommunicator final : public PartialDeviceCommunicator {
 public:
  /// `flat`: of all members. `within`: of the members of this host, in order. `between`: of this
  /// one's column.
  HierarchicalDeviceCommunicator(std::shared_ptr<DeviceCommunicator> flat,
                                 std::unique_ptr<DeviceCommunicator> within,
                                 std::unique_ptr<ColumnAllreduce> between);

  [[nodiscard]] const char* activity(OpKind kind) const override;
  [[nodiscard]] std::size_t granule() const override;

  /// May wait for the stream, where ColumnAllreduce does.
  void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype, ReduceOp op,
                 double factor, CudaStream stream) override;
  /// Within the host and in the column; who has made the flat one enrols what that uses.
  void enroll(const DevicePiece& memory) override;
  void withdraw(const DevicePiece& memory) override;
  [[nodiscard]] std::optional<std::string> failure() const override;
  void abort() override;

 private:
  std::unique_ptr<DeviceCommunicator> within_;
  std::unique_ptr<ColumnAllreduce> between_;
};

}  // namespace hvdtune
