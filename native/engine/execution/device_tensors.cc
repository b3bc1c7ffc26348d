#include "engine/execution/device_tensors.h"

#include <algorithm>

#include "engine/operation/results.h"

namespace hvdtune {
namespace {

template <typename Class>
Class& class_of(std::vector<Class>& classes, DType dtype) {
  const auto found =
      std::ranges::find_if(classes, [dtype](const Class& c) { return c.dtype == dtype; });
  if (found != classes.end()) return *found;
  classes.emplace_back().dtype = dtype;
  return classes.back();
}

}  // namespace

std::vector<DeviceTensors> tensors_by_dtype(DeviceBatch& batch,
                                            const std::shared_ptr<const Device>& device,
                                            CudaStream stream) {
  std::vector<DeviceTensors> classes;
  for (const OperationPtr& operation : batch.operations) {
    for (std::size_t i = 0; i < operation->memory.size(); ++i) {
      const wire::TensorSpec& spec = operation->request.tensors[i];
      const auto bytes = static_cast<std::size_t>(spec.bytes());
      if (bytes == 0) continue;
      DeviceTensors& tensors = class_of(classes, spec.dtype);
      if (operation->on_device) {
        tensors.in.push_back({device_address(operation->memory[i].in), bytes});
        tensors.out.push_back({device_address(operation->memory[i].out), bytes});
      } else {
        const DeviceMemory& zeros = batch.kept.emplace_back(device, bytes);
        device->clear(zeros.pointer(), bytes, stream);
        tensors.in.push_back({zeros.pointer(), bytes});
        tensors.out.push_back({zeros.pointer(), bytes});
      }
    }
  }
  return classes;
}

std::vector<DeviceShares> shares_by_dtype(const DeviceBatch& batch, int members, int self) {
  std::vector<DeviceShares> classes;
  for (const OperationPtr& operation : batch.operations) {
    for (std::size_t i = 0; i < operation->memory.size(); ++i) {
      const wire::TensorSpec& spec = operation->request.tensors[i];
      DeviceShares& shares = class_of(classes, spec.dtype);
      shares.whole = shares.in.empty() && spec.shape[0] % members == 0;
      shares.in.resize(static_cast<std::size_t>(members));
      CudaPointer at = device_address(operation->memory[i].in);
      for (int m = 0; m < members; ++m) {
        const auto bytes =
            static_cast<std::size_t>(scattered_rows(spec.shape[0], m, members) * row_bytes(spec));
        shares.in[static_cast<std::size_t>(m)].push_back({at, bytes});
        if (m == self) shares.out.push_back({operation->on_device->outputs[i].pointer(), bytes});
        at += bytes;
      }
    }
  }
  return classes;
}

CudaPointer add_output(Operation& operation, std::size_t index, std::int64_t rows) {
  const wire::TensorSpec& spec = operation.request.tensors[index];
  std::vector<std::int64_t> shape = spec.shape;
  shape[0] = rows;
  OnDevice& there = *operation.on_device;
  return there.outputs
      .emplace_back(there.device, static_cast<std::size_t>(rows * row_bytes(spec)),
                    std::move(shape))
      .pointer();
}

void place_one_after_the_other(CudaPointer at, std::vector<DevicePiece>& pieces) {
  for (DevicePiece& piece : pieces) {
    piece.at = at;
    at += piece.bytes;
  }
}

}  // namespace hvdtune
