// How fast the kernels copy tensors into the fusion buffer and out of it, compared with one plain
// copy of as many bytes on the same GPU. `benchmarks/gpu/parts.py` builds it and reads its output;
// by hand:
//
//   pack_bandwidth LIBCUDA NVRTC|- [--check] < sizes
//
// Standard input has the sizes of the tensors in bytes, one per line. Prints one JSON object:
// median milliseconds of `copy`, and of pack and unpack with and without a factor. With --check,
// does each once and compares the tensors with their original values: for compute-sanitizer.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/kernels/device_kernels.h"
#include "device/stream.h"

namespace hvdtune {
namespace {

constexpr int kRounds = 30;
constexpr int kWarmUps = 5;

struct Tensors {
  std::vector<DeviceMemory> memory;
  std::vector<DevicePiece> pieces;
  std::size_t bytes = 0;
};

std::vector<std::size_t> read_sizes() {
  std::vector<std::size_t> sizes;
  for (long long size = 0; std::cin >> size;) {
    if (size < 1 || size % 4 != 0) {
      throw Error(ErrorKind::kInvalidArgument, "sizes are multiples of 4 bytes, one per line");
    }
    sizes.push_back(static_cast<std::size_t>(size));
  }
  if (sizes.empty())
    throw Error(ErrorKind::kInvalidArgument, "there are no sizes on standard input");
  return sizes;
}

/// Each tensor has memory of its own, like those of a framework.
Tensors make_tensors(const std::shared_ptr<const Device>& device,
                     const std::vector<std::size_t>& sizes) {
  Tensors tensors;
  for (const std::size_t size : sizes) {
    tensors.memory.emplace_back(device, size);
    tensors.pieces.push_back({tensors.memory.back().pointer(), size});
    tensors.bytes += size;
  }
  return tensors;
}

/// Float32s whose halves and doubles are exact, so that a factor and back changes nothing.
std::vector<float> pattern(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 4099) - 2048;
  return values;
}

/// Milliseconds, by the GPU's clock, of the work that `enqueue` gives to the stream.
double median_of(const std::shared_ptr<const Device>& device, const DeviceStream& stream,
                 const std::function<void()>& enqueue) {
  std::vector<double> times;
  DeviceEvent begin(device, true);
  DeviceEvent end(device, true);
  for (int round = 0; round < kWarmUps + kRounds; ++round) {
    begin.record(stream.handle());
    enqueue();
    end.record(stream.handle());
    end.synchronize();
    if (round >= kWarmUps) times.push_back(end.milliseconds_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

/// Whether tensors packed with a factor of 0.5 and unpacked with 2 are unchanged.
bool comes_back(const std::shared_ptr<const Device>& device, DeviceKernels& kernels,
                Tensors& tensors, CudaPointer packed, DeviceStream& stream) {
  const std::size_t largest =
      std::max_element(tensors.pieces.begin(), tensors.pieces.end(),
                       [](const auto& a, const auto& b) { return a.bytes < b.bytes; })
          ->bytes;
  const PinnedMemory host(device, largest);
  const std::vector<float> values = pattern(largest / 4);
  std::memcpy(host.data(), values.data(), largest);
  for (const DevicePiece& piece : tensors.pieces) {
    device->copy(piece.at, host.pointer(), piece.bytes, stream.handle());
  }
  const bool scaled = kernels.compiled();
  kernels.pack(tensors.pieces, packed, DType::kFloat32, scaled ? 0.5 : 1.0, stream.handle());
  for (const DevicePiece& piece : tensors.pieces) {
    device->clear(piece.at, piece.bytes, stream.handle());
  }
  kernels.unpack(packed, tensors.pieces, DType::kFloat32, scaled ? 2.0 : 1.0, stream.handle());
  bool same = true;
  for (const DevicePiece& piece : tensors.pieces) {
    device->copy(host.pointer(), piece.at, piece.bytes, stream.handle());
    stream.synchronize();
    same = same && std::memcmp(host.data(), values.data(), piece.bytes) == 0;
  }
  return same;
}

int run(const std::string& cuda, const std::string& nvrtc, bool check) {
  const auto device = Device::open(CudaDriver::open(cuda), 0);
  DeviceKernels kernels(device, nvrtc == "-" ? nullptr : Nvrtc::open(nvrtc));
  Tensors tensors = make_tensors(device, read_sizes());
  const std::size_t room = packed_bytes(tensors.pieces);
  const DeviceMemory packed(device, room);
  DeviceStream stream(device);
  const bool same = comes_back(device, kernels, tensors, packed.pointer(), stream);
  std::printf(
      "{\"gpu\": \"%s\", \"kernels\": \"%s\", \"tensors\": %zu, \"bytes\": %zu, \"same\": %s",
      device->name().c_str(), kernels.origin().c_str(), tensors.pieces.size(), tensors.bytes,
      same ? "true" : "false");
  if (!check) {
    const DeviceMemory other(device, room);
    const auto time = [&](const char* what, const std::function<void()>& enqueue) {
      std::printf(", \"%s\": %.6f", what, median_of(device, stream, enqueue));
    };
    time("copy", [&] { device->copy(other.pointer(), packed.pointer(), room, stream.handle()); });
    for (const double scale : {1.0, 0.5}) {
      if (scale != 1 && !kernels.compiled()) continue;
      time(scale == 1 ? "pack" : "pack_scaled", [&] {
        kernels.pack(tensors.pieces, packed.pointer(), DType::kFloat32, scale, stream.handle());
      });
      time(scale == 1 ? "unpack" : "unpack_scaled", [&] {
        kernels.unpack(packed.pointer(), tensors.pieces, DType::kFloat32, scale, stream.handle());
      });
    }
  }
  std::printf("}\n");
  return same ? 0 : 1;
}

}  // namespace
}  // namespace hvdtune

int main(int count, char** words) {
  const bool check = count == 4 && std::string(words[3]) == "--check";
  if (count != 3 && !check) {
    std::fprintf(stderr, "usage: pack_bandwidth LIBCUDA NVRTC|- [--check] < sizes\n");
    return 2;
  }
  try {
    return hvdtune::run(words[1], words[2], check);
  } catch (const hvdtune::Error& error) {
    std::fprintf(stderr, "pack_bandwidth: %s\n", error.what());
    return 1;
  }
}
