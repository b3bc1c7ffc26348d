#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/gpu/nccl_communicator.h"
#include "fake_gpu.h"
#include "shm_world.h"

// Members of a communicator over the fake NCCL, as threads of this process.

namespace hvdtune::testing {

inline std::shared_ptr<const NcclLibrary> fake_nccl() {
  return NcclLibrary::open(fake_path("libnccl.so.2"));
}

inline int communicators_left() { return fake_nccl_function<int()>("fake_nccl_live")(); }

inline int collectives_in_windows() { return fake_nccl_function<int()>("fake_nccl_in_windows")(); }

/// What a member of a test has.
struct Member {
  int index;
  int size;
  std::shared_ptr<const Device> device;
  std::shared_ptr<const NcclLibrary> library;
  NcclCommunicator& nccl;
  DeviceStream& stream;
  Communicator& control;
};

/// body() on so many members, threads of this process with a GPU each.
inline void on_members(int size, const std::function<void(Member&)>& body, NcclOptions options = {},
                       const std::string& wrong = "") {
  const std::string gpus = "devices=" + std::to_string(size) + wrong;
  const Faults faults(gpus.c_str());
  World world(size);
  options.aborted = [&]() -> std::optional<std::string> {
    if (!world.arena().aborted()) return {};
    return world.arena().abort_status().text;
  };
  world.run([&](int rank, Communicator& control) {
    const auto device = fake_device(rank);
    const auto library = fake_nccl();
    const auto nccl = NcclCommunicator::connect(control, library, device, options);
    DeviceStream stream(device);
    Member member{rank, size, device, library, *nccl, stream, control};
    try {
      body(member);
    } catch (...) {
      nccl->abort();
      throw;
    }
  });
  CHECK_EQ(communicators_left(), 0);
  CHECK_EQ(live().memory, 0U);
  CHECK_EQ(live().contexts, 0U);
}

}  // namespace hvdtune::testing
