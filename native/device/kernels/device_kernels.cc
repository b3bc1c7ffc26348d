#include "device/kernels/device_kernels.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "device/kernels/kernels_source.h"

namespace hvdtune {
namespace {

/// Blocks that a multiprocessor works on at once; more would only wait for their turn.
constexpr unsigned kBlocksEach = 4;

bool scales(DType dtype) { return dtype != DType::kBool; }

KernelSize tiles(const KernelWork& work) {
  return (work.end - work.begin + kTileBytes - 1) / kTileBytes;
}

ReduceStep step_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return ReduceStep::kMin;
    case ReduceOp::kMax:
      return ReduceStep::kMax;
    case ReduceOp::kProduct:
      return ReduceStep::kProduct;
    default:
      HVD_CHECK(op == ReduceOp::kSum);
      return ReduceStep::kSum;
  }
}

/// Number of blocks that are needed if each thread reduces one vector.
KernelSize reducing_blocks(KernelSize bytes) {
  constexpr KernelSize kBlockBytes = KernelSize{kKernelThreads} * 16;
  return (bytes + kBlockBytes - 1) / kBlockBytes;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::size_t packed_bytes(std::span<const DevicePiece> pieces) {
  std::size_t bytes = 0;
  for (const DevicePiece& piece : pieces) bytes += padded(piece.bytes);
  return bytes;
}

DeviceKernels::DeviceKernels(std::shared_ptr<const Device> device,
                             std::shared_ptr<const Nvrtc> nvrtc)
    : device_(std::move(device)) {
  const auto built_in = built_in_kernels();
  if (!built_in.empty() && load(built_in.data(), "built in")) return;
  if (nvrtc) {
    compile(*nvrtc);
  } else {
    why_not_ = built_in.empty() ? "hvdtune was built without nvcc, and NVRTC is not there"
                                : "the built-in kernels are for other GPUs, and NVRTC is not there";
  }
}

DeviceKernels::~DeviceKernels() {
  if (module_ == nullptr) return;
  try {
    const Device::Current current(*device_);
    device_->driver().cuModuleUnload(module_);
  } catch (const Error&) {  // the driver has ended, and its modules with it
  }
}

void DeviceKernels::compile(const Nvrtc& nvrtc) {
  try {
    const std::vector<char> image =
        nvrtc.compile(kKernelsSource, "kernels.cu", device_->compute_capability());
    (void)load(image.data(), "NVRTC " + std::to_string(nvrtc.version() / 1000) + "." +
                                 std::to_string(nvrtc.version() % 1000 / 10));
  } catch (const Error& error) {
    why_not_ = first_line(error.what());
  }
}

/// Loads `image`; returns whether the driver accepts it and it has all kernels.
bool DeviceKernels::load(const void* image, const std::string& origin) {
  const Device::Current current(*device_);
  const CudaDriver& driver = device_->driver();
  CudaModule module = nullptr;
  CudaResult result = driver.cuModuleLoadData(&module, image);
  if (result != CudaResult::kSuccess) {
    why_not_ = "the driver does not accept the kernels (" + origin + "): " + driver.name(result);
    return false;
  }
  const auto find = [&](Functions& functions, const std::string& name) {
    for (const auto& [function, prefix] : {std::pair{&functions.pack, "hvdtune_pack_"},
                                           std::pair{&functions.unpack, "hvdtune_unpack_"}}) {
      if (result != CudaResult::kSuccess) return;
      result = driver.cuModuleGetFunction(function, module, (prefix + name).c_str());
    }
  };
  find(copying_, "copy");
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    if (scales(dtype)) find(scaling_[static_cast<std::size_t>(code)], dtype_name(dtype));
    if (result != CudaResult::kSuccess) break;
    const auto at = static_cast<std::size_t>(code);
    for (const auto& [function, prefix] : {std::pair{&reducing_[at], "hvdtune_reduce_"},
                                           std::pair{&meeting_[at], "hvdtune_meet_"}}) {
      if (result != CudaResult::kSuccess) break;
      const std::string name = std::string(prefix) + dtype_name(dtype);
      result = driver.cuModuleGetFunction(function, module, name.c_str());
    }
  }
  if (result != CudaResult::kSuccess) {
    driver.cuModuleUnload(module);
    why_not_ = "a kernel is missing (" + origin + "): " + driver.name(result);
    return false;
  }
  module_ = module;
  origin_ = origin;
  why_not_.clear();
  return true;
}

void DeviceKernels::pack(std::span<const DevicePiece> pieces, CudaPointer to, DType dtype,
                         double scale, CudaStream stream) {
  run(Direction::kPack, pieces, to, dtype, scale, stream);
}

void DeviceKernels::unpack(CudaPointer from, std::span<const DevicePiece> pieces, DType dtype,
                           double scale, CudaStream stream) {
  run(Direction::kUnpack, pieces, from, dtype, scale, stream);
}

void DeviceKernels::scale(const DevicePiece& piece, DType dtype, double scale, CudaStream stream) {
  if (scale == 1.0 || !scales(dtype)) return;
  // Source and target are the same; unpacking writes nothing after a piece.
  run(Direction::kUnpack, std::span(&piece, 1), piece.at, dtype, scale, stream);
}

void DeviceKernels::run(Direction direction, std::span<const DevicePiece> pieces,
                        CudaPointer packed, DType dtype, double scale, CudaStream stream) {
  const bool plain = scale == 1.0 || !scales(dtype);
  if (!compiled()) {
    if (!plain) {
      throw Error(ErrorKind::kInvalidArgument,
                  "tensors on the GPU cannot be scaled without kernels: " + why_not_);
    }
    return copy_each(direction, pieces, packed, stream);
  }
  const Functions& functions = plain ? copying_ : scaling_[static_cast<std::size_t>(dtype)];
  const CudaFunction function = direction == Direction::kPack ? functions.pack : functions.unpack;
  KernelWork work{};
  work.packed = packed;
  work.scale = scale;
  for (const DevicePiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (work.count == kPiecesPerLaunch) {
      launch(function, tiles(work), &work, stream);
      work.count = 0;
      work.begin = work.end;
    }
    work.pieces[work.count++] = {piece.at, work.end, piece.bytes};
    work.end += padded(piece.bytes);
  }
  if (work.count > 0) launch(function, tiles(work), &work, stream);
}

void DeviceKernels::reduce(std::span<const CudaPointer> sources, CudaPointer out, std::size_t count,
                           DType dtype, ReduceOp op, double scale, CudaStream stream) {
  HVD_CHECK(compiled() && !sources.empty() && sources.size() <= kMostKernelSources);
  if (count == 0) return;
  ReduceWork work{};
  work.out = out;
  work.bytes = count * dtype_size(dtype);
  work.scale = scale;
  work.step = step_of(op);
  work.sources = static_cast<int>(sources.size());
  std::ranges::copy(sources, work.source);
  launch(reducing_[static_cast<std::size_t>(dtype)], reducing_blocks(work.bytes), &work, stream);
}

KernelSize DeviceKernels::meet(MeetingWork work, DType dtype, ReduceOp op, CudaStream stream) {
  HVD_CHECK(compiled() && work.reduce.sources <= kMostKernelSources);
  work.reduce.step = step_of(op);
  // The number must be the same on all members, so it does not depend on this GPU.
  const KernelSize blocks =
      std::min<KernelSize>(reducing_blocks(work.reduce.bytes), kMeetingBlocks);
  launch_blocks(meeting_[static_cast<std::size_t>(dtype)], blocks, &work, stream);
  return blocks;
}

/// Launches as many blocks as there are parts of the work, but no more than can run at once.
void DeviceKernels::launch(CudaFunction function, KernelSize parts, const void* work,
                           CudaStream stream) {
  const KernelSize most = kBlocksEach * static_cast<unsigned>(device_->multiprocessors());
  launch_blocks(function, std::min(parts, most), work, stream);
}

void DeviceKernels::launch_blocks(CudaFunction function, KernelSize blocks, const void* work,
                                  CudaStream stream) {
  void* parameters[] = {const_cast<void*>(work)};  // read before the call returns
  const Device::Current current(*device_);
  const CudaDriver& driver = device_->driver();
  driver.check(driver.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kKernelThreads,
                                     1, 1, 0, stream, parameters, nullptr),
               "cuLaunchKernel");
}

void DeviceKernels::copy_each(Direction direction, std::span<const DevicePiece> pieces,
                              CudaPointer packed, CudaStream stream) {
  for (const DevicePiece& piece : pieces) {
    if (direction == Direction::kPack) {
      device_->copy(packed, piece.at, piece.bytes, stream);
      device_->clear(packed + piece.bytes, padded(piece.bytes) - piece.bytes, stream);
    } else {
      device_->copy(piece.at, packed, piece.bytes, stream);
    }
    packed += padded(piece.bytes);
  }
}

}  // namespace hvdtune
