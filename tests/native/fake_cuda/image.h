#pragma once

namespace fake_cuda {

/// How what the fake NVRTC makes begins; an int follows, the compute capability.
inline constexpr char kImageMagic[8] = "fakegpu";

}  // namespace fake_cuda
