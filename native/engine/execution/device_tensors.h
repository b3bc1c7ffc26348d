#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/kernels/device_piece.h"
#include "engine/execution/device_batch.h"

namespace hvdtune {

/// Tensors of one dtype within a batch, in order; none is empty.
struct DeviceTensors {
  DType dtype;
  std::vector<DevicePiece> in;
  std::vector<DevicePiece> out;
};

/// The parts of a reducescatter for the tensors of one dtype.
struct DeviceShares {
  DType dtype;
  std::vector<std::vector<DevicePiece>> in;  ///< [member]: its share of each tensor
  std::vector<DevicePiece> out;              ///< this member's
  /// It is a single tensor with equal shares, which are contiguous.
  bool whole = false;
};

inline CudaPointer device_address(const void* memory) {
  return reinterpret_cast<CudaPointer>(memory);
}

/// The tensors of an allreduce. If this rank has joined, makes zeros for the operations of
/// others (on `stream`), which the batch keeps. Throws Error(kAborted).
std::vector<DeviceTensors> tensors_by_dtype(DeviceBatch& batch,
                                            const std::shared_ptr<const Device>& device,
                                            CudaStream stream);

/// The tensors of a reducescatter among `members`, whose outputs were added.
std::vector<DeviceShares> shares_by_dtype(const DeviceBatch& batch, int members, int self);

/// Memory for the `rows` rows of an operation's result for its tensor `index`; called once per
/// tensor, in order. Throws Error(kAborted).
CudaPointer add_output(Operation& operation, std::size_t index, std::int64_t rows);

/// Sets the addresses of the pieces, one after the other from `at` on, without gaps.
void place_one_after_the_other(CudaPointer at, std::vector<DevicePiece>& pieces);

}  // namespace hvdtune
