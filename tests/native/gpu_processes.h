#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/kernels/kernels.h"
#include "collective/shm/shm_communicator.h"
#include "device/kernels/device_kernels.h"
#include "fake_gpu.h"
#include "transport/arena/arena.h"

// Ranks with fake GPUs as processes, as a process cannot open its own memory. They are forked, so a
// program of such tests has no other threads and never loads the fake driver itself.

namespace hvdtune::testing {

/// What a rank has. Copies share everything.
struct GpuRank {
  int index;
  int size;
  Arena& arena;
  Communicator& control;
  std::shared_ptr<const Device> device;
  std::shared_ptr<DeviceKernels> kernels;
  std::shared_ptr<DeviceStream> stream;
};

using GpuBody = std::function<void(GpuRank&)>;

inline int run_gpu_rank(const std::shared_ptr<Arena>& arena, int rank, int size, int gpus,
                        const GpuBody& body) {
  try {
    std::vector<int> all;
    for (int member = 0; member < size; ++member) all.push_back(member);
    ShmCommunicator control(arena, all, rank, 0, Patience{});
    {
      GpuRank here{rank, size, *arena, control, fake_device(rank % gpus), nullptr, nullptr};
      here.kernels =
          std::make_shared<DeviceKernels>(here.device, Nvrtc::open(fake_path("libnvrtc.so")));
      here.stream = std::make_shared<DeviceStream>(here.device);
      body(here);
    }
    const FakeCudaLive left = live();
    CHECK_EQ(left.memory + left.pinned + left.events + left.streams + left.modules + left.contexts,
             0U);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    arena->abort("a test failed");
    return 1;
  }
}

/// body() in `size` processes on `gpus` GPUs; the exit statuses as of waitpid().
inline std::vector<int> gpu_statuses(int size, int gpus, const GpuBody& body) {
  const std::string devices = "devices=" + std::to_string(gpus);
  const Faults faults(devices.c_str());
  const auto arena = Arena::create(size);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(run_gpu_rank(arena, rank, size, gpus, body));
    children.push_back(child);
  }
  std::vector<int> all;
  for (const pid_t child : children) {
    all.push_back(-1);
    CHECK_EQ(waitpid(child, &all.back(), 0), child);
  }
  return all;
}

inline void in_gpu_processes(int size, int gpus, const GpuBody& body) {
  for (const int status : gpu_statuses(size, gpus, body)) CHECK_EQ(status, 0);
}

/// Values on a rank's GPU, with room for the rest of the last 16 bytes.
template <class T>
struct OnRank : OnGpu<T> {
  OnRank(const GpuRank& rank, const std::vector<T>& values) : OnGpu<T>(rank, values, 16) {}
};

/// What `member` brings: bytes that any rank can make.
inline std::vector<std::uint8_t> bytes_of(DType dtype, std::size_t bytes, int member) {
  std::vector<std::uint8_t> values(bytes);
  for (std::size_t index = 0; index < bytes; ++index) {
    const auto value = static_cast<std::uint8_t>(index * 7 + static_cast<std::size_t>(member) * 13);
    // Exponents in the middle: no NaN, whose payload GPUs do not keep.
    values[index] = dtype == DType::kBool ? value & 1 : value & 0x3f;
  }
  return values;
}

/// What all of them make, by the kernels of the CPU.
inline std::vector<std::uint8_t> reduced(DType dtype, ReduceOp op, std::size_t bytes, int members,
                                         double factor) {
  std::vector<std::vector<std::uint8_t>> all;
  std::vector<const void*> sources;
  for (int member = 0; member < members; ++member) all.push_back(bytes_of(dtype, bytes, member));
  for (const auto& each : all) sources.push_back(each.data());
  std::vector<std::uint8_t> result(bytes);
  reduce_kernel(dtype, op)(result.data(), sources.data(), members, bytes / dtype_size(dtype),
                           factor);
  return result;
}

}  // namespace hvdtune::testing
