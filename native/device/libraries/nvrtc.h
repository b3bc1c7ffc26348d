#pragma once

#include <memory>
#include <string>
#include <vector>

namespace hvdtune {

/// NVIDIA's run-time compiler of CUDA C++ (libnvrtc), found at run time. Any thread.
class Nvrtc {
 public:
  /// Throws Error(kInvalidArgument), one sentence: no such file, not NVRTC, older than 11.2.
  static std::shared_ptr<const Nvrtc> open(const std::string& path);

  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  /// 1000 * major + 10 * minor, e.g. 12040.
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// Compiles `source` to an image for cuModuleLoadData(), for GPUs of `capability` (e.g. 90):
  /// machine code, or, if this NVRTC is older than the GPU, PTX of the newest that it knows. `name`
  /// is the file name in messages. Takes about a second. Throws Error(kInvalidArgument) with the
  /// compiler's log.
  [[nodiscard]] std::vector<char> compile(const std::string& source, const std::string& name,
                                          int capability) const;

 private:
  explicit Nvrtc(const std::string& path);

  using Program = struct NvrtcProgramOpaque*;
  using Result = int;

  void check(Result result, const char* what) const;
  [[nodiscard]] std::vector<int> capabilities() const;

  std::string path_;
  int version_ = 0;
  Result (*nvrtcVersion_)(int* major, int* minor);
  const char* (*nvrtcGetErrorString_)(Result result);
  Result (*nvrtcGetNumSupportedArchs_)(int* count);
  Result (*nvrtcGetSupportedArchs_)(int* capabilities);
  Result (*nvrtcCreateProgram_)(Program* program, const char* source, const char* name, int headers,
                                const char* const* header_sources, const char* const* header_names);
  Result (*nvrtcDestroyProgram_)(Program* program);
  Result (*nvrtcCompileProgram_)(Program program, int options, const char* const* option);
  Result (*nvrtcGetProgramLogSize_)(Program program, std::size_t* bytes);
  Result (*nvrtcGetProgramLog_)(Program program, char* log);
  Result (*nvrtcGetPTXSize_)(Program program, std::size_t* bytes);
  Result (*nvrtcGetPTX_)(Program program, char* ptx);
  Result (*nvrtcGetCUBINSize_)(Program program, std::size_t* bytes);
  Result (*nvrtcGetCUBIN_)(Program program, char* cubin);
};

}  // namespace hvdtune
