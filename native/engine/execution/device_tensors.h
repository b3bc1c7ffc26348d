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

/// What a reducescatter does with the tensors of one dtype.
struct DeviceShares {
  DType dtype;
  std::vector<std::vector<DevicePiece>> in;  ///< [member]: its share of each tensor
  std::vector<DevicePiece> out;              ///< this member's
  /// It is one tensor, of which all members get as much: its shares lie one after the other.
  bool whole = false;
};

inline CudaPointer device_address(const void* memory) {
  return reinterpret_cast<CudaPointer>(memory);
}

/// The tensors of an allreduce. For operations that a rank which has joined takes part in, it makes
/// zeros (on `stream`), which the batch keeps. Throws Error(kAborted).
std::vector<DeviceTensors> tensors_by_dtype(DeviceBatch& batch,
                                            const std::shared_ptr<const Device>& device,
                                            CudaStream stream);

/// Those of a reducescatter among `members`, whose outputs were added.
std::vector<DeviceShares> shares_by_dtype(const DeviceBatch& batch, int members, int self);

/// Memory for `rows` rows that an operation results in for its tensor `index`; asked once a tensor,
/// in order. Throws Error(kAborted).
CudaPointer add_output(Operation& operation, std::size_t index, std::int64_t rows);

/// Lets the pieces begin at `at`, without gaps.
void place_one_after_the_other(CudaPointer at, std::vector<DevicePiece>& pieces);

}  // namespace hvdtune
