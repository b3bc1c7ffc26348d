#include <cstring>
#include <limits>
#include <random>

#include "collective/kernels/kernels.h"
#include "device/kernels/device_kernels.h"
#include "fake_gpu.h"

namespace hvdtune::testing::test_device_kernels {

namespace {

std::shared_ptr<const Nvrtc> fake_nvrtc() { return Nvrtc::open(fake_path("libnvrtc.so")); }

/// Random bits of a type: with NaNs, infinities and the smallest numbers among them; bool: 0 and 1.
std::vector<std::uint8_t> random_values(DType dtype, std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> values(bytes);
  for (auto& value : values) value = static_cast<std::uint8_t>(random());
  if (dtype == DType::kBool) {
    for (auto& value : values) value &= 1;
  }
  return values;
}

bool is_nan(DType dtype, const std::uint8_t* value) {
  std::uint16_t half = 0;
  float single = 0;
  double twice = 0;
  switch (dtype) {
    case DType::kFloat16:
      std::memcpy(&half, value, sizeof half);
      return (half & 0x7fffU) > 0x7c00U;
    case DType::kBfloat16:
      std::memcpy(&half, value, sizeof half);
      return (half & 0x7fffU) > 0x7f80U;
    case DType::kFloat32:
      std::memcpy(&single, value, sizeof single);
      return single != single;
    case DType::kFloat64:
      std::memcpy(&twice, value, sizeof twice);
      return twice != twice;
    default:
      return false;
  }
}

/// Bit for bit, but for what a NaN says.
void check_same(DType dtype, const std::vector<std::uint8_t>& is,
                const std::vector<std::uint8_t>& expected, const std::string& where) {
  const std::size_t size = dtype_size(dtype);
  CHECK_EQ(is.size(), expected.size());
  for (std::size_t at = 0; at + size <= is.size(); at += size) {
    if (is_nan(dtype, &is[at]) && is_nan(dtype, &expected[at])) continue;
    CHECK_MSG(std::memcmp(&is[at], &expected[at], size) == 0,
              where << ", " << dtype_name(dtype) << ", element " << at / size);
  }
}

/// Tensors in one allocation, with gaps between them; what is in the gaps must stay.
struct Tensors {
  Tensors(const std::shared_ptr<const Device>& on, DType type,
          const std::vector<std::size_t>& lengths, std::size_t shift, unsigned seed)
      : device(on), dtype(type) {
    std::size_t end = 64;
    for (const std::size_t length : lengths) {
      places.push_back(end + shift * dtype_size(type));
      end = (places.back() + length * dtype_size(type) + 127) / 64 * 64;
    }
    memory = DeviceMemory(device, end);
    content = random_values(dtype, end, seed);
    put(*device, memory.pointer(), content);
    for (std::size_t index = 0; index < lengths.size(); ++index) {
      pieces.push_back({memory.pointer() + places[index], lengths[index] * dtype_size(dtype)});
    }
  }

  [[nodiscard]] std::vector<std::uint8_t> bytes_of(std::size_t index) const {
    return {content.begin() + static_cast<std::ptrdiff_t>(places[index]),
            content.begin() + static_cast<std::ptrdiff_t>(places[index] + pieces[index].bytes)};
  }
  [[nodiscard]] std::vector<std::uint8_t> now() const {
    return get<std::uint8_t>(*device, memory.pointer(), content.size());
  }

  std::shared_ptr<const Device> device;
  DType dtype;
  std::vector<std::size_t> places;
  DeviceMemory memory;
  std::vector<std::uint8_t> content;
  std::vector<DevicePiece> pieces;
};

std::vector<std::uint8_t> scaled(DType dtype, std::vector<std::uint8_t> values, double scale) {
  if (dtype != DType::kBool && scale != 1.0) {
    scale_kernel(dtype)(values.data(), values.data(), values.size() / dtype_size(dtype), scale);
  }
  return values;
}

/// Packs with `scale`, looks at every byte of the buffer, unpacks with `scale` into other tensors,
/// and looks at every byte of these and of what is between them.
void go_there_and_back(DeviceKernels& kernels, const std::shared_ptr<const Device>& device,
                       DType dtype, const std::vector<std::size_t>& lengths, std::size_t shift,
                       double scale) {
  const DeviceStream stream(device);
  const Tensors from(device, dtype, lengths, shift, 1);
  const Tensors to(device, dtype, lengths, shift == 0 ? 0 : shift + 1, 2);
  const std::size_t bytes = packed_bytes(from.pieces);
  const DeviceMemory buffer(device, bytes + 16);
  put(*device, buffer.pointer(), std::vector<std::uint8_t>(bytes + 16, 0xee));

  kernels.pack(from.pieces, buffer.pointer(), dtype, scale, stream.handle());
  stream.synchronize();
  std::vector<std::uint8_t> packed;
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    const auto values = scaled(dtype, from.bytes_of(index), scale);
    packed.insert(packed.end(), values.begin(), values.end());
    packed.resize(padded(packed.size()), 0);
  }
  auto expected = packed;
  expected.resize(bytes + 16, 0xee);
  check_same(dtype, get<std::uint8_t>(*device, buffer.pointer(), bytes + 16), expected, "packed");

  kernels.unpack(buffer.pointer(), to.pieces, dtype, scale, stream.handle());
  stream.synchronize();
  auto unpacked = to.content;
  std::size_t at = 0;
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    const std::vector<std::uint8_t> piece(
        packed.begin() + static_cast<std::ptrdiff_t>(at),
        packed.begin() + static_cast<std::ptrdiff_t>(at + to.pieces[index].bytes));
    const auto values = scaled(dtype, piece, scale);
    std::copy(values.begin(), values.end(),
              unpacked.begin() + static_cast<std::ptrdiff_t>(to.places[index]));
    at += padded(values.size());
  }
  check_same(dtype, to.now(), unpacked, "unpacked");
}

const std::vector<std::size_t> kLengths = {1, 0, 15, 16, 17, 4096, 3, 20001, 2, 8192};

}  // namespace

TEST(places_in_the_buffer_are_multiples_of_16) {
  CHECK_EQ(padded(0), 0U);
  CHECK_EQ(padded(1), 16U);
  CHECK_EQ(padded(16), 16U);
  const std::vector<DevicePiece> pieces = {{0, 1}, {0, 0}, {0, 16}, {0, 17}};
  CHECK_EQ(packed_bytes(pieces), 64U);
}

TEST(all_types_go_there_and_back_as_on_the_cpu) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  CHECK(kernels.compiled());
  CHECK_EQ(kernels.origin(), std::string("NVRTC 12.4"));
  CHECK_EQ(kernels.why_not(), std::string());
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const double scale : {1.0, 1.0 / 3, -2.5e9}) {
      go_there_and_back(kernels, device, dtype, kLengths, 0, scale);
    }
  }
}

TEST(tensors_that_begin_anywhere) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  for (const DType dtype : {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64}) {
    for (const std::size_t shift : {1, 2, 3}) {
      for (const double scale : {1.0, 0.5}) {
        go_there_and_back(kernels, device, dtype, kLengths, shift, scale);
      }
    }
  }
}

TEST(more_tensors_than_a_launch_has_room_for) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  std::vector<std::size_t> lengths;
  for (std::size_t index = 0; index < 2 * kPiecesPerLaunch + 7; ++index) {
    lengths.push_back(index % 11 * 9);
  }
  go_there_and_back(kernels, device, DType::kFloat16, lengths, 0, 0.25);
  go_there_and_back(kernels, device, DType::kFloat32, lengths, 0, 1.0);
}

TEST(no_tensors_are_no_launch) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  const DeviceStream stream(device);
  const Faults faults("fail-launch");
  const std::vector<DevicePiece> nothing(3);
  kernels.pack(nothing, 0, DType::kFloat32, 1.0, stream.handle());
  kernels.unpack(0, {}, DType::kFloat32, 0.5, stream.handle());
}

TEST(a_tensor_is_scaled_where_it_is) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  const DeviceStream stream(device);
  for (const std::size_t shift : {0, 1}) {
    const Tensors tensors(device, DType::kFloat32, {1001, 5}, shift, 3);
    kernels.scale(tensors.pieces[0], DType::kFloat32, 0.1, stream.handle());
    stream.synchronize();
    auto expected = tensors.content;
    const auto values = scaled(DType::kFloat32, tensors.bytes_of(0), 0.1);
    std::copy(values.begin(), values.end(),
              expected.begin() + static_cast<std::ptrdiff_t>(tensors.places[0]));
    check_same(DType::kFloat32, tensors.now(), expected, "scaled");
  }
}

TEST(sources_are_reduced_as_on_the_cpu) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  const DeviceStream stream(device);
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{37}, std::size_t{20000}}) {
        const std::size_t bytes = count * dtype_size(dtype);
        const double scale = op == ReduceOp::kSum && count == 37 ? 1.0 / 3 : 1.0;
        std::vector<DeviceMemory> memory;
        std::vector<CudaPointer> sources;
        std::vector<std::vector<std::uint8_t>> values;
        std::vector<const void*> on_host;
        for (unsigned source = 0; source < 3; ++source) {
          values.push_back(random_values(dtype, bytes, source + 7));
          memory.emplace_back(device, padded(bytes));
          sources.push_back(memory.back().pointer());
          put(*device, sources.back(), values.back());
        }
        for (const auto& each : values) on_host.push_back(each.data());
        std::vector<std::uint8_t> expected(bytes);
        reduce_kernel(dtype, op)(expected.data(), on_host.data(), 3, count, scale);
        // Beside the sources, at a place that is no multiple of 16; and into one of them.
        const DeviceMemory out(device, bytes + 8);
        kernels.reduce(sources, out.pointer() + 8, count, dtype, op, scale, stream.handle());
        kernels.reduce(sources, sources[1], count, dtype, op, scale, stream.handle());
        stream.synchronize();
        check_same(dtype, get<std::uint8_t>(*device, out.pointer() + 8, bytes), expected, "beside");
        check_same(dtype, get<std::uint8_t>(*device, sources[1], bytes), expected, "in place");
      }
    }
  }
}

namespace {

/// Without kernels everything but scaling is done, by copies.
void check_copies(const std::shared_ptr<const Device>& device, DeviceKernels& kernels) {
  CHECK(!kernels.compiled());
  CHECK_EQ(kernels.origin(), std::string("copies"));
  go_there_and_back(kernels, device, DType::kBfloat16, kLengths, 0, 1.0);
  go_there_and_back(kernels, device, DType::kBool, kLengths, 1, 0.5);
  const DeviceStream stream(device);
  const std::vector<DevicePiece> one = {{1, 4}};
  CHECK_THROWS_WITH(kernels.pack(one, 16, DType::kFloat32, 0.5, stream.handle()), Error,
                    "tensors on the GPU cannot be scaled without kernels: " + kernels.why_not());
}

}  // namespace

TEST(without_a_compiler_there_are_copies) {
  const auto device = fake_device();
  DeviceKernels kernels(device, nullptr);
  CHECK(kernels.why_not().find("NVRTC is not there") != std::string::npos);
  check_copies(device, kernels);
}

TEST(what_does_not_compile_is_told_and_copied) {
  const Faults faults("fail-compile");
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  CHECK_EQ(kernels.why_not(),
           std::string("NVRTC 12.4 cannot compile kernels.cu: NVRTC_ERROR_COMPILATION"));
  check_copies(device, kernels);
  CHECK_THROWS_WITH((void)fake_nvrtc()->compile("int", "x.cu", 90), Error,
                    "kernels.cu(1): error: something is missing");
}

TEST(what_the_driver_refuses_is_told_and_copied) {
  const Faults faults("bad-image");
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  CHECK_EQ(kernels.why_not(), std::string("the driver does not accept the kernels (NVRTC 12.4): "
                                          "CUDA_ERROR_INVALID_IMAGE"));
  check_copies(device, kernels);
}

TEST(a_gpu_that_nvrtc_does_not_know_gets_what_it_knows) {
  {
    const Faults faults("capability=121");  // newer: the driver compiles the rest
    DeviceKernels kernels(fake_device(), fake_nvrtc());
    CHECK(kernels.compiled());
  }
  const Faults faults("capability=70");
  DeviceKernels kernels(fake_device(), fake_nvrtc());
  CHECK_EQ(kernels.why_not(),
           std::string("NVRTC 12.4 does not know GPUs of compute capability 7.0"));
}

TEST(nvrtc_is_looked_at_before_it_is_used) {
  CHECK_THROWS_WITH(Nvrtc::open("/nowhere/libnvrtc.so"), Error, "NVRTC cannot be loaded: /nowhere");
  CHECK_THROWS_WITH(Nvrtc::open("libm.so.6"), Error,
                    "has no nvrtcVersion: hvdtune needs NVRTC 11.2");
  const Faults faults("nvrtc=11010");
  CHECK_THROWS_WITH(fake_nvrtc(), Error, "is version 11.1: hvdtune needs NVRTC 11.2 or later");
}

TEST(a_launch_that_fails_and_a_kernel_that_fails) {
  const auto device = fake_device();
  DeviceKernels kernels(device, fake_nvrtc());
  const DeviceStream stream(device);
  const DeviceMemory memory(device, 64);
  const std::vector<DevicePiece> one = {{memory.pointer(), 16}};
  {
    const Faults faults("fail-launch");
    CHECK_THROWS_WITH(kernels.pack(one, memory.pointer() + 32, DType::kInt32, 1.0, stream.handle()),
                      Error, "cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED");
  }
  const Faults faults("fail-kernel");
  kernels.pack(one, memory.pointer() + 32, DType::kInt32, 1.0, stream.handle());
  CHECK_THROWS_WITH(stream.synchronize(), Error, "CUDA_ERROR_LAUNCH_FAILED");
}

}  // namespace hvdtune::testing::test_device_kernels
