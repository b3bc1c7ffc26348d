#pragma once

#include "stream.h"

// What the fake NCCL asks the fake driver in whose process it is; and what tests ask it.

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))
#define FAKE_SHARED __attribute__((visibility("default")))

namespace fake_cuda {

using hvdtune::CudaStream;

/// The calling thread's GPU; -1 where no context is current.
FAKE_SHARED int current_device();
/// The stream, of the current context; null where it is none of its.
FAKE_SHARED std::shared_ptr<Stream> stream_of(CudaStream handle);
/// Stream::enqueue().
FAKE_SHARED void enqueue(Stream& stream, Task task);
/// Where bytes of a GPU really are; null unless they belong to one allocation.
FAKE_SHARED std::byte* memory_of(int device, CudaPointer pointer, std::size_t bytes);

}  // namespace fake_cuda

/// How much is not freed yet: allocations of device memory and of page-locked memory, streams,
/// events, modules; contexts that are retained.
struct FakeCudaLive {
  std::size_t memory;
  std::size_t pinned;
  std::size_t streams;
  std::size_t events;
  std::size_t modules;
  std::size_t contexts;
};
FAKE_EXPORT FakeCudaLive fake_cuda_live();
