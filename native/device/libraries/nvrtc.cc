#include "device/libraries/nvrtc.h"

#include <algorithm>

#include "base/error.h"
#include "device/libraries/shared_library.h"

namespace hvdtune {
namespace {

constexpr const char* kOldestNvrtcText = "NVRTC 11.2";
constexpr int kOldestNvrtc = 11020;

std::string nvrtc_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::shared_ptr<const Nvrtc> Nvrtc::open(const std::string& path) {
  return std::shared_ptr<const Nvrtc>(new Nvrtc(path));
}

Nvrtc::Nvrtc(const std::string& path) : path_(path) {
  const SharedLibrary library("NVRTC", path);
  const auto find = [&](auto*& function, const char* symbol) {
    library.find(function, symbol, kOldestNvrtcText);
  };
  find(nvrtcVersion_, "nvrtcVersion");
  find(nvrtcGetErrorString_, "nvrtcGetErrorString");
  int major = 0;
  int minor = 0;
  check(nvrtcVersion_(&major, &minor), "nvrtcVersion");
  version_ = 1000 * major + 10 * minor;
  if (version_ < kOldestNvrtc) {
    throw Error(ErrorKind::kInvalidArgument, "NVRTC at " + path + " is version " +
                                                 nvrtc_version_text(version_) + ": hvdtune needs " +
                                                 kOldestNvrtcText + " or later");
  }
  find(nvrtcGetNumSupportedArchs_, "nvrtcGetNumSupportedArchs");
  find(nvrtcGetSupportedArchs_, "nvrtcGetSupportedArchs");
  find(nvrtcCreateProgram_, "nvrtcCreateProgram");
  find(nvrtcDestroyProgram_, "nvrtcDestroyProgram");
  find(nvrtcCompileProgram_, "nvrtcCompileProgram");
  find(nvrtcGetProgramLogSize_, "nvrtcGetProgramLogSize");
  find(nvrtcGetProgramLog_, "nvrtcGetProgramLog");
  find(nvrtcGetPTXSize_, "nvrtcGetPTXSize");
  find(nvrtcGetPTX_, "nvrtcGetPTX");
  find(nvrtcGetCUBINSize_, "nvrtcGetCUBINSize");
  find(nvrtcGetCUBIN_, "nvrtcGetCUBIN");
}

void Nvrtc::check(Result result, const char* what) const {
  if (result == 0) return;
  const char* const text = nvrtcGetErrorString_(result);
  throw Error(ErrorKind::kInvalidArgument,
              std::string(what) + " failed: " + (text == nullptr ? "unknown error" : text));
}

std::vector<int> Nvrtc::capabilities() const {
  int count = 0;
  check(nvrtcGetNumSupportedArchs_(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  check(nvrtcGetSupportedArchs_(known.data()), "nvrtcGetSupportedArchs");
  return known;
}

std::vector<char> Nvrtc::compile(const std::string& source, const std::string& name,
                                 int capability) const {
  const std::vector<int> known = capabilities();
  int target = 0;  // the newest that is not newer than the GPU
  for (const int each : known) {
    if (each <= capability) target = std::max(target, each);
  }
  if (target == 0) {
    throw Error(ErrorKind::kInvalidArgument, "NVRTC " + nvrtc_version_text(version_) +
                                                 " does not know GPUs of compute capability " +
                                                 std::to_string(capability / 10) + "." +
                                                 std::to_string(capability % 10));
  }
  const bool machine_code = target == capability;
  const std::string architecture = std::string("--gpu-architecture=") +
                                   (machine_code ? "sm_" : "compute_") + std::to_string(target);
  const char* const options[] = {architecture.c_str(), "--std=c++17"};

  Program program = nullptr;
  check(nvrtcCreateProgram_(&program, source.c_str(), name.c_str(), 0, nullptr, nullptr),
        "nvrtcCreateProgram");
  struct Destroyed {
    const Nvrtc& nvrtc;
    Program program;
    ~Destroyed() { nvrtc.nvrtcDestroyProgram_(&program); }
  } const destroyed{*this, program};

  if (const Result result = nvrtcCompileProgram_(program, 2, options); result != 0) {
    std::size_t bytes = 0;
    std::string log;
    if (nvrtcGetProgramLogSize_(program, &bytes) == 0 && bytes > 0) {
      log.resize(bytes);
      nvrtcGetProgramLog_(program, log.data());
      log.resize(bytes - 1);  // without its terminating zero
    }
    const char* const text = nvrtcGetErrorString_(result);
    throw Error(ErrorKind::kInvalidArgument, "NVRTC " + nvrtc_version_text(version_) +
                                                 " cannot compile " + name + ": " +
                                                 (text == nullptr ? "" : text) + "\n" + log);
  }
  std::size_t bytes = 0;
  std::vector<char> image;
  if (machine_code) {
    check(nvrtcGetCUBINSize_(program, &bytes), "nvrtcGetCUBINSize");
    image.resize(bytes);
    check(nvrtcGetCUBIN_(program, image.data()), "nvrtcGetCUBIN");
  } else {
    check(nvrtcGetPTXSize_(program, &bytes), "nvrtcGetPTXSize");
    image.resize(bytes);
    check(nvrtcGetPTX_(program, image.data()), "nvrtcGetPTX");
  }
  return image;
}

}  // namespace hvdtune
