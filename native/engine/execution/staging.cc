#include "engine/execution/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvdtune {
namespace {

constexpr std::size_t kLine = 64;
// If a batch needs more than this, the memory is freed after it.
constexpr std::size_t kMostKept = std::size_t{256} << 20;

std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

CudaPointer address(const void* memory) { return reinterpret_cast<CudaPointer>(memory); }

std::size_t tensor_bytes(const Operation& operation, std::size_t index) {
  return static_cast<std::size_t>(operation.request.tensors[index].bytes());
}

/// Its result has the tensor's size, and the submitter's memory.
bool result_is_given(OpKind kind) { return !traits_of(kind).changes_rows; }

}  // namespace

DeviceStream& Staging::stream() {
  if (!stream_) stream_ = std::make_unique<DeviceStream>(gpus_.in_use());
  return *stream_;
}

std::byte* Staging::memory(std::optional<PinnedMemory>& kept, std::size_t bytes) {
  if (!kept || kept->bytes() < bytes) {
    kept.reset();  // free it before allocating more
    kept.emplace(gpus_.in_use(), bytes);
  }
  return static_cast<std::byte*>(kept->data());
}

void Staging::trim() {
  for (auto* kept : {&tensors_, &results_}) {
    if (*kept && (*kept)->bytes() > kMostKept) kept->reset();
  }
}

Staging::Batch::Batch(Staging& staging, const std::vector<OperationPtr>& operations)
    : staging_(staging), operations_(operations) {
  std::size_t bytes = 0;
  for (const OperationPtr& operation : operations) {
    if (!operation->on_device) continue;
    for (std::size_t i = 0; i < operation->memory.size(); ++i) {
      bytes += lines(tensor_bytes(*operation, i));
    }
  }
  const auto on_device = [](const OperationPtr& operation) {
    return operation->on_device != nullptr;
  };
  if (std::ranges::none_of(operations, on_device)) return;
  const ProfilerSpan span(staging.gpus_.profiler(), "MEMCPY_IN_HOST_BUFFER");
  std::byte* place = staging.memory(staging.tensors_, std::max(bytes, kLine));
  DeviceStream& stream = staging.stream();
  given_.resize(operations.size());
  std::vector<std::vector<TensorMemory>> staged(operations.size());
  for (std::size_t o = 0; o < operations.size(); ++o) {
    Operation& operation = *operations[o];
    if (!operation.on_device) continue;
    operation.on_device->queued.end();
    for (const SharedEvent& ready : operation.on_device->ready) stream.wait(*ready);
    for (std::size_t i = 0; i < operation.memory.size(); ++i) {
      const std::size_t length = tensor_bytes(operation, i);
      if (length > 0) {
        stream.device().copy(address(place), address(operation.memory[i].in), length,
                             stream.handle());
      }
      const bool given = result_is_given(operation.request.kind);
      staged[o].push_back({place, given ? place : nullptr});
      place += lines(length);
    }
  }
  stream.synchronize();
  for (std::size_t o = 0; o < operations.size(); ++o) {
    if (!operations[o]->on_device) continue;
    given_[o] = std::exchange(operations[o]->memory, std::move(staged[o]));
  }
}

Staging::Batch::~Batch() {
  for (std::size_t o = 0; o < given_.size(); ++o) {
    if (operations_[o]->on_device) operations_[o]->memory = std::move(given_[o]);
  }
  staging_.trim();
}

void Staging::Batch::copy_out() {
  if (given_.empty()) return;
  const ProfilerSpan span(staging_.gpus_.profiler(), "MEMCPY_OUT_HOST_BUFFER");
  DeviceStream& stream = staging_.stream();
  const Device& device = stream.device();
  std::size_t bytes = 0;
  for (const OperationPtr& operation : operations_) {
    if (!operation->on_device) continue;
    for (const OwnedBuffer& result : operation->outputs) bytes += lines(result.bytes());
  }
  std::byte* place = bytes > 0 ? staging_.memory(staging_.results_, bytes) : nullptr;
  for (std::size_t o = 0; o < operations_.size(); ++o) {
    Operation& operation = *operations_[o];
    if (!operation.on_device) continue;
    if (result_is_given(operation.request.kind)) {
      for (std::size_t i = 0; i < operation.memory.size(); ++i) {
        const std::size_t length = tensor_bytes(operation, i);
        if (length == 0) continue;
        device.copy(address(given_[o][i].out), address(operation.memory[i].out), length,
                    stream.handle());
      }
      continue;
    }
    for (const OwnedBuffer& result : operation.outputs) {
      DeviceBuffer& there = operation.on_device->outputs.emplace_back(
          operation.on_device->device, result.bytes(), result.shape());
      if (result.bytes() == 0) continue;
      // Copy it to page-locked memory first: only from there does the GPU copy asynchronously.
      std::memcpy(place, result.data(), result.bytes());
      device.copy(there.pointer(), address(place), result.bytes(), stream.handle());
      place += lines(result.bytes());
    }
    operation.outputs.clear();
  }
  stream.synchronize();
}

}  // namespace hvdtune
