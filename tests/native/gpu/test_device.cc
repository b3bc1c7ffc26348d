#include <atomic>
#include <cstring>

#include "fake_gpu.h"
#include "threads.h"

namespace hvdtune::testing::test_device {

namespace {

/// Nothing that was made is left.
void check_nothing_left() {
  const FakeCudaLive left = live();
  CHECK_EQ(left.memory + left.pinned + left.streams + left.events + left.modules + left.contexts,
           0U);
}

std::vector<int> count_up(int count) {
  std::vector<int> values;
  for (int value = 0; value < count; ++value) values.push_back(value);
  return values;
}

}  // namespace

TEST(a_library_that_is_not_there_is_one_sentence) {
  CHECK_THROWS_WITH(CudaDriver::open("/nowhere/libcuda.so.1"), Error,
                    "NVIDIA's driver cannot be loaded: /nowhere/libcuda.so.1");
}

TEST(a_library_that_is_something_else_is_one_sentence) {
  CHECK_THROWS_WITH(CudaDriver::open("libm.so.6"), Error, "has no cuInit: hvdtune needs");
}

TEST(an_old_driver_is_refused_with_its_version) {
  const Faults faults("driver=11020");
  CHECK_THROWS_WITH(fake_driver(), Error, "supports CUDA 11.2: hvdtune needs the driver of CUDA");
}

TEST(a_driver_without_a_gpu_says_so) {
  const Faults faults("no-device");
  CHECK_THROWS_WITH(fake_driver(), Error, "sees no GPU");
}

TEST(a_gpu_that_is_not_there_is_named_with_what_there_is) {
  CHECK_THROWS_WITH(fake_device(2), Error, "there is no GPU 2: this process may use 2 GPUs");
  CHECK_THROWS(fake_device(-1), Error);
}

TEST(a_device_says_what_it_is) {
  const auto device = fake_device(1);
  CHECK_EQ(device->index(), 1);
  CHECK_EQ(device->name(), std::string("Fake GPU"));
  CHECK_EQ(device->compute_capability(), 90);
  CHECK(std::memcmp(&device->uuid(), &fake_device(0)->uuid(), sizeof(CudaUuid)) != 0);
}

TEST(bytes_go_to_the_gpu_and_back_in_the_order_of_a_stream) {
  {
    const auto device = fake_device();
    const DeviceStream stream(device);
    const std::size_t bytes = 1000 * sizeof(int);
    const DeviceMemory there(device, bytes);
    PinnedMemory from(device, bytes);
    PinnedMemory to(device, bytes);
    const std::vector<int> values = count_up(1000);
    std::memcpy(from.data(), values.data(), bytes);
    const Faults faults("slow=5");
    device->copy(there.pointer(), from.pointer(), bytes, stream.handle());
    device->clear(there.pointer() + 40, 20, stream.handle());
    device->copy(to.pointer(), there.pointer(), bytes, stream.handle());
    stream.synchronize();
    std::vector<int> expected = values;
    std::fill(expected.begin() + 10, expected.begin() + 15, 0);
    CHECK(std::memcmp(to.data(), expected.data(), bytes) == 0);
  }
  check_nothing_left();
}

TEST(an_event_is_reached_after_what_was_before_it) {
  const auto device = fake_device();
  const DeviceStream stream(device);
  const DeviceMemory memory(device, 64);
  DeviceEvent before(device, true);
  DeviceEvent after(device, true);
  CHECK(after.done());  // never recorded
  const Faults faults("slow=20");
  before.record(stream.handle());
  device->clear(memory.pointer(), 64, stream.handle());
  after.record(stream.handle());
  CHECK(!after.done());
  after.synchronize();
  CHECK(after.done() && before.done());
  CHECK(after.milliseconds_since(before) >= 20.0);  // the work cannot have taken less
}

TEST(events_without_time_have_none) {
  const auto device = fake_device();
  const DeviceStream stream(device);
  DeviceEvent one(device, false);
  DeviceEvent two(device, false);
  one.record(stream.handle());
  two.record(stream.handle());
  two.synchronize();
  CHECK_THROWS_WITH((void)two.milliseconds_since(one), Error, "CUDA_ERROR_INVALID_HANDLE");
}

TEST(a_stream_waits_for_an_event_of_another) {
  const auto device = fake_device();
  const DeviceStream first(device);
  DeviceStream second(device);
  const std::vector<int> values = count_up(16);
  const std::size_t bytes = values.size() * sizeof(int);
  const DeviceMemory a(device, bytes);
  const DeviceMemory b(device, bytes);
  const DeviceMemory c(device, bytes);
  put(*device, a.pointer(), values);
  DeviceEvent copied(device, false);
  const Faults faults("slow=10");
  device->copy(b.pointer(), a.pointer(), bytes, first.handle());
  copied.record(first.handle());
  second.wait(copied);
  device->copy(c.pointer(), b.pointer(), bytes, second.handle());
  second.synchronize();
  CHECK(get<int>(*device, c.pointer(), 16) == values);
}

TEST(the_default_stream_and_a_framework_s_streams_are_streams_too) {
  const auto device = fake_device();
  const DeviceMemory memory(device, 16);
  DeviceEvent event(device, false);
  for (const std::uintptr_t handle : {0, 1, 2}) {
    const auto stream = reinterpret_cast<CudaStream>(handle);
    device->clear(memory.pointer(), 16, stream);
    event.record(stream);
    event.synchronize();
    CHECK(!device->capturing(stream));
  }
  CHECK_THROWS_WITH(event.record(reinterpret_cast<CudaStream>(std::uintptr_t{0x99})), Error,
                    "cuEventRecord failed: CUDA_ERROR_INVALID_HANDLE");
}

TEST(a_captured_stream_is_recognised) {
  const auto device = fake_device();
  const DeviceStream stream(device);
  const Device::Current current(*device);
  auto* const begin = fake_function<CudaResult(CudaStream, int)>("cuStreamBeginCapture_v2");
  auto* const end = fake_function<CudaResult(CudaStream, void**)>("cuStreamEndCapture");
  void* graph = nullptr;
  CHECK(!device->capturing(stream.handle()));
  CHECK(begin(stream.handle(), 0) == CudaResult::kSuccess);
  CHECK(device->capturing(stream.handle()));
  CHECK(end(stream.handle(), &graph) == CudaResult::kSuccess);
  CHECK(!device->capturing(stream.handle()));
}

TEST(the_default_stream_cannot_be_used_while_one_that_waits_for_it_is_captured) {
  const auto device = fake_device();
  const Device::Current current(*device);
  auto* const create = fake_function<CudaResult(CudaStream*, unsigned)>("cuStreamCreate");
  auto* const begin = fake_function<CudaResult(CudaStream, int)>("cuStreamBeginCapture_v2");
  auto* const end = fake_function<CudaResult(CudaStream, void**)>("cuStreamEndCapture");
  void* graph = nullptr;
  CudaStream theirs = nullptr;
  CHECK(create(&theirs, 0) == CudaResult::kSuccess);
  CHECK(begin(theirs, 0) == CudaResult::kSuccess);
  CHECK(device->capturing(nullptr));
  const DeviceStream ours(device);
  CHECK(!device->capturing(ours.handle()));
  CHECK(end(theirs, &graph) == CudaResult::kSuccess);
  CHECK(!device->capturing(nullptr));
  CHECK(device->driver().cuStreamDestroy(theirs) == CudaResult::kSuccess);
}

TEST(contexts_nest_and_are_left_as_they_were) {
  const auto first = fake_device(0);
  const auto second = fake_device(1);
  const DeviceMemory of_first(first, 64);
  const DeviceMemory of_second(second, 64);
  const Device::Current outer(*first);
  {
    const Device::Current inner(*second);
    const Device::Current innermost(*first);
  }
  // A stream of one GPU is none of the other's.
  const DeviceStream stream(first);
  CHECK_THROWS_WITH(second->clear(of_second.pointer(), 64, stream.handle()), Error,
                    "CUDA_ERROR_INVALID_HANDLE");
  CHECK_EQ(first->driver().device_of(of_first.pointer()), 0);
  CHECK_EQ(first->driver().device_of(of_second.pointer() + 63), 1);
  const PinnedMemory pinned(first, 64);
  CHECK_EQ(first->driver().device_of(pinned.pointer()), -1);
  int local = 0;
  CHECK_THROWS_WITH((void)first->driver().device_of(host_address(&local)), Error,
                    "is neither a GPU's memory nor page-locked");
}

TEST(memory_that_is_not_there_is_named_with_its_size) {
  const auto device = fake_device();
  const Faults faults("memory=1000000,pinned=1000");
  CHECK_THROWS_WITH(DeviceMemory(device, 1000001), Error,
                    "cuMemAlloc: no 1000001 bytes left for GPU 0 (Fake GPU)");
  CHECK_THROWS_WITH(PinnedMemory(device, 1001), Error, "cuMemHostAlloc: no 1001 bytes left");
  const DeviceMemory fits(device, 500000);
  CHECK_THROWS(DeviceMemory(device, 600000), Error);
}

TEST(freed_memory_is_noticed) {
  const auto device = fake_device();
  const DeviceStream stream(device);
  CudaPointer gone = 0;
  {
    const DeviceMemory memory(device, 64);
    gone = memory.pointer();
  }
  CHECK_THROWS_WITH(device->clear(gone, 64, stream.handle()), Error, "CUDA_ERROR_INVALID_VALUE");
  const DeviceMemory small(device, 64);
  CHECK_THROWS_WITH(device->clear(small.pointer(), 65, stream.handle()), Error,
                    "CUDA_ERROR_INVALID_VALUE");
}

TEST(a_failure_on_the_gpu_reaches_whoever_waits) {
  const auto device = fake_device();
  const DeviceStream stream(device);
  DeviceEvent event(device, false);
  {
    const Faults faults("slow=30");
    const DeviceMemory memory(device, 64);
    device->clear(memory.pointer(), 64, stream.handle());
    event.record(stream.handle());
  }  // freed too early
  CHECK_THROWS_WITH(event.synchronize(), Error,
                    "work on the GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK_THROWS_WITH((void)event.done(), Error, "an illegal memory access was encountered");
  CHECK_THROWS(DeviceStream{device}, Error);
}

TEST(memory_moves_to_another_owner) {
  const auto device = fake_device();
  DeviceMemory memory(device, 100);
  const CudaPointer at = memory.pointer();
  DeviceMemory other(std::move(memory));
  CHECK_EQ(other.pointer(), at);
  other = DeviceMemory(device, 200);
  CHECK_EQ(other.bytes(), 200U);
  CHECK_EQ(live().memory, 1U);
  PinnedMemory pinned(device, 10);
  PinnedMemory kept(std::move(pinned));
  kept = PinnedMemory();
  CHECK_EQ(live().pinned, 0U);
}

TEST(the_pool_gives_events_again_and_survives_its_events) {
  {
    const auto device = fake_device();
    const DeviceStream stream(device);
    EventPool::Event kept;
    {
      EventPool pool(device, true);
      CudaEvent first = nullptr;
      {
        const auto event = pool.take();
        first = event->handle();
      }
      kept = pool.take();
      CHECK(kept->handle() == first);
      const auto another = pool.take();
      CHECK(another->handle() != first);
    }
    kept->record(stream.handle());
    kept->synchronize();
  }
  check_nothing_left();
}

TEST(many_threads_share_a_pool) {
  {
    const auto device = fake_device();
    EventPool pool(device, false);
    run_threads(4, [&](int) {
      const DeviceStream stream(device);
      const DeviceMemory memory(device, 64);
      for (int round = 0; round < 50; ++round) {
        const auto event = pool.take();
        device->clear(memory.pointer(), 64, stream.handle());
        event->record(stream.handle());
        event->synchronize();
        CHECK(event->done());
      }
    });
  }
  check_nothing_left();
}

}  // namespace hvdtune::testing::test_device
