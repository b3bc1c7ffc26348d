#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "device/device.h"
#include "device/stream.h"
#include "fake_cuda/fake_cuda.h"

// The fake libraries of fake_cuda/, as the tests use them. HVDTUNE_FAKES is the folder they are in.

namespace hvdtune::testing {

inline std::string fake_path(const std::string& file) {
  return std::string(HVDTUNE_FAKES) + "/" + file;
}

/// The fake libraries' faults, until the end of the scope. Not beside other threads.
class Faults {
 public:
  explicit Faults(const char* faults) { setenv("HVDTUNE_FAKE_CUDA", faults, 1); }
  ~Faults() { unsetenv("HVDTUNE_FAKE_CUDA"); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

inline std::shared_ptr<const CudaDriver> fake_driver() {
  return CudaDriver::open(fake_path("libcuda.so.1"));
}

inline std::shared_ptr<const Device> fake_device(int index = 0) {
  return Device::open(fake_driver(), index);
}

/// A function of the fake driver that CudaDriver does not know.
template <class Function>
Function* fake_function(const char* name) {
  void* const library = dlopen(fake_path("libcuda.so.1").c_str(), RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

/// A function of the fake NCCL that NcclLibrary does not know.
template <class Function>
Function* fake_nccl_function(const char* name) {
  void* const library = dlopen(fake_path("libnccl.so.2").c_str(), RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

inline FakeCudaLive live() { return fake_function<FakeCudaLive()>("fake_cuda_live")(); }

/// Brings values to a GPU and back, in the order of stream 0.
template <class T>
void put(const Device& device, CudaPointer to, const std::vector<T>& values) {
  const Device::Current current(device);
  auto* const copy =
      fake_function<CudaResult(CudaPointer, const void*, std::size_t)>("cuMemcpyHtoD_v2");
  device.driver().check(copy(to, values.data(), values.size() * sizeof(T)), "cuMemcpyHtoD");
}

template <class T>
std::vector<T> get(const Device& device, CudaPointer from, std::size_t count) {
  const Device::Current current(device);
  std::vector<T> values(count);
  auto* const copy = fake_function<CudaResult(void*, CudaPointer, std::size_t)>("cuMemcpyDtoH_v2");
  device.driver().check(copy(values.data(), from, count * sizeof(T)), "cuMemcpyDtoH");
  return values;
}

/// Values on the GPU of `place`, whose `device` it is, and `room` bytes after them.
template <class T>
struct OnGpu {
  template <class Place>
  OnGpu(const Place& place, const std::vector<T>& values, std::size_t room = 0)
      : device(place.device), count(values.size()), memory(device, count * sizeof(T) + room) {
    put(*device, memory.pointer(), values);
  }
  [[nodiscard]] CudaPointer at(std::size_t index = 0) const {
    return memory.pointer() + index * sizeof(T);
  }
  [[nodiscard]] DevicePiece piece(std::size_t first, std::size_t many) const {
    return {at(first), many * sizeof(T)};
  }
  [[nodiscard]] std::vector<T> values() const { return get<T>(*device, memory.pointer(), count); }

  std::shared_ptr<const Device> device;
  std::size_t count;
  DeviceMemory memory;
};

}  // namespace hvdtune::testing
