#pragma once

#include <memory>

#include "collective/gpu/column_allreduce.h"
#include "collective/gpu/partial_device_communicator.h"

namespace hvdtune {

/// Allreduces of GPUs of several hosts with equally many members each: a reducescatter among the
/// members of each host, an allreduce of each share among its column (host_columns.h), and an
/// allgather on each host. Thus each GPU sends its own share between hosts, all at the same time.
///
/// Sums are those of NCCL in that order: the same bits on all members, but not the same as those of
/// other algorithms. The remainder that does not divide into equal shares (less than one element
/// per member of a host) is reduced among all members at once, as is every other operation. All
/// phases use one stream, in order.
class HierarchicalDeviceCommunicator final : public PartialDeviceCommunicator {
 public:
  /// `flat`: of all members. `within`: of the members of this host, in order. `between`: of this
  /// one's column.
  HierarchicalDeviceCommunicator(std::shared_ptr<DeviceCommunicator> flat,
                                 std::unique_ptr<DeviceCommunicator> within,
                                 std::unique_ptr<ColumnAllreduce> between);

  [[nodiscard]] const char* activity(OpKind kind) const override;
  [[nodiscard]] std::size_t granule() const override;

  /// May wait for the stream, if ColumnAllreduce does.
  void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype, ReduceOp op,
                 double factor, CudaStream stream) override;
  /// Enrols within the host and in the column; the maker of the flat communicator enrols memory
  /// there.
  void enroll(const DevicePiece& memory) override;
  void withdraw(const DevicePiece& memory) override;
  [[nodiscard]] std::optional<std::string> failure() const override;
  void abort() override;

 private:
  std::unique_ptr<DeviceCommunicator> within_;
  std::unique_ptr<ColumnAllreduce> between_;
};

}  // namespace hvdtune
