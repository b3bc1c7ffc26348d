#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/op_kind.h"
#include "device/device.h"
#include "device/kernels/device_piece.h"
#include "device/kernels/kernel_work.h"
#include "device/libraries/nvrtc.h"

namespace hvdtune {

/// `bytes`, rounded up to the next multiple of kPieceAlignment.
constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

/// Bytes that `pieces` take in a packed buffer, including padding after the last one.
std::size_t packed_bytes(std::span<const DevicePiece> pieces);

/// The kernels of one GPU that copy tensors into and out of the fusion buffer. All calls enqueue on
/// a stream and do not wait. One thread at a time.
///
/// If there are neither compiled kernels nor NVRTC, every piece is copied separately, and scale
/// must be 1.
class DeviceKernels {
 public:
  /// `nvrtc` may be null. Compiles or loads the kernels, once. If NVRTC or the driver refuses, that
  /// is no error: why_not() gives the reason, and copies are used.
  DeviceKernels(std::shared_ptr<const Device> device, std::shared_ptr<const Nvrtc> nvrtc);
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  /// Whether kernels are used, and so whether scale may differ from 1.
  [[nodiscard]] bool compiled() const { return module_ != nullptr; }
  /// Why kernels are not used, one sentence; empty if they are.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  /// Origin of the kernels: "built in", "NVRTC 12.4", "copies".
  [[nodiscard]] const std::string& origin() const { return origin_; }

  /// Copies the pieces one after the other to `to` (a multiple of 16), multiplied by `scale`:
  /// floating types in float32 (float64 in float64) and rounded once; integers in float64,
  /// truncated toward zero and saturated; bool is never scaled. Results equal the CPU's
  /// ScaleKernel, bit for bit. Fills the gaps between pieces with zeros. Pieces have whole elements
  /// and the alignment of their type. Launches as often as the number of pieces requires; empty
  /// pieces cost nothing. Throws Error(kAborted).
  void pack(std::span<const DevicePiece> pieces, CudaPointer to, DType dtype, double scale,
            CudaStream stream);
  /// The reverse, from `from` (a multiple of 16) to the pieces. Does not read the gaps between
  /// pieces.
  void unpack(CudaPointer from, std::span<const DevicePiece> pieces, DType dtype, double scale,
              CudaStream stream);
  /// Multiplies `piece` by `scale` in place. Throws Error(kAborted).
  void scale(const DevicePiece& piece, DType dtype, double scale, CudaStream stream);

  /// out[i] = scale * (sources[0][i] OP sources[1][i] OP …), `count` elements, equal to the CPU's
  /// ReduceKernel bit for bit except for a NaN's payload. Up to 16 sources, which begin at
  /// multiples of 16 bytes and whose memory extends to a multiple of 16; `out` may be one of them.
  /// Not for kAverage and kAdasum; only if compiled(). Throws Error(kAborted).
  void reduce(std::span<const CudaPointer> sources, CudaPointer out, std::size_t count, DType dtype,
              ReduceOp op, double scale, CudaStream stream);

  /// One launch in which the kernels of several GPUs wait for each other (MeetingWork); this
  /// function sets only the step of `work`. Sources as in reduce(); `out` may be `in`. Each member
  /// has its own GPU, and all members launch the same. Returns the number of blocks. Throws
  /// Error(kAborted).
  KernelSize meet(MeetingWork work, DType dtype, ReduceOp op, CudaStream stream);

 private:
  /// The kernels of one type, or those that only copy.
  struct Functions {
    CudaFunction pack = nullptr;
    CudaFunction unpack = nullptr;
  };
  enum class Direction : bool { kPack, kUnpack };

  [[nodiscard]] bool load(const void* image, const std::string& origin);
  void compile(const Nvrtc& nvrtc);
  void run(Direction direction, std::span<const DevicePiece> pieces, CudaPointer packed,
           DType dtype, double scale, CudaStream stream);
  void launch(CudaFunction function, KernelSize parts, const void* work, CudaStream stream);
  void launch_blocks(CudaFunction function, KernelSize blocks, const void* work, CudaStream stream);
  void copy_each(Direction direction, std::span<const DevicePiece> pieces, CudaPointer packed,
                 CudaStream stream);

  std::shared_ptr<const Device> device_;
  CudaModule module_ = nullptr;
  Functions copying_;
  std::array<Functions, kDTypeCount> scaling_;  ///< by DType; none for bool
  std::array<CudaFunction, kDTypeCount> reducing_{};
  std::array<CudaFunction, kDTypeCount> meeting_{};
  std::string why_not_;
  std::string origin_ = "copies";
};

}  // namespace hvdtune
