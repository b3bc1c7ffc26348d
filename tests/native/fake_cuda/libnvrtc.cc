#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "faults.h"
#include "image.h"

// The functions of libnvrtc that hvdtune uses. What it "compiles" the fake driver has already.

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace fake_cuda;  // NOLINT: the functions have C's names

namespace {

struct Program {
  std::string source;
  std::string log;
  std::string image;
  bool machine_code = false;
};

enum Result : int {
  kSuccess = 0,
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kInvalidOption = 5,
  kCompilation = 6
};

constexpr int kKnown[] = {75, 80, 86, 89, 90};

Result give(const std::string& text, char* to) {
  std::memcpy(to, text.data(), text.size());
  return kSuccess;
}

}  // namespace

FAKE_EXPORT Result nvrtcVersion(int* major, int* minor) {
  const auto version = static_cast<int>(setting("nvrtc", 12040));
  *major = version / 1000;
  *minor = version % 1000 / 10;
  return kSuccess;
}

FAKE_EXPORT const char* nvrtcGetErrorString(Result result) {
  return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}

FAKE_EXPORT Result nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kKnown));
  return kSuccess;
}

FAKE_EXPORT Result nvrtcGetSupportedArchs(int* known) {
  std::memcpy(known, kKnown, sizeof kKnown);
  return kSuccess;
}

FAKE_EXPORT Result nvrtcCreateProgram(Program** program, const char* source, const char*,
                                      int headers, const char* const*, const char* const*) {
  if (source == nullptr || headers != 0) return kInvalidInput;
  *program = new Program;
  (*program)->source = source;
  return kSuccess;
}

FAKE_EXPORT Result nvrtcDestroyProgram(Program** program) {
  if (*program == nullptr) return kInvalidProgram;
  delete *program;
  *program = nullptr;
  return kSuccess;
}

FAKE_EXPORT Result nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  int capability = 0;
  for (int index = 0; index < count; ++index) {
    const std::string_view option(options[index]);
    constexpr std::string_view kName = "--gpu-architecture=";
    if (option.substr(0, kName.size()) != kName) continue;
    const std::string value(option.substr(kName.size()));
    program->machine_code = value.rfind("sm_", 0) == 0;
    const bool intermediate = value.rfind("compute_", 0) == 0;
    if (!program->machine_code && !intermediate) return kInvalidOption;
    capability = std::stoi(value.substr(value.find('_') + 1));
  }
  bool known = false;
  for (const int each : kKnown) known = known || each == capability;
  if (!known) return kInvalidOption;
  const bool whole = program->source.find("struct KernelWork") != std::string::npos &&
                     program->source.find("#include") == std::string::npos;
  if (!whole || fault("fail-compile")) {
    program->log = "kernels.cu(1): error: something is missing\n1 error detected";
    return kCompilation;
  }
  program->image.assign(kImageMagic, sizeof kImageMagic);
  program->image.append(reinterpret_cast<const char*>(&capability), sizeof capability);
  return kSuccess;
}

FAKE_EXPORT Result nvrtcGetProgramLogSize(Program* program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return kSuccess;
}

FAKE_EXPORT Result nvrtcGetProgramLog(Program* program, char* log) {
  log[program->log.size()] = '\0';
  return give(program->log, log);
}

FAKE_EXPORT Result nvrtcGetCUBINSize(Program* program, std::size_t* bytes) {
  *bytes = program->machine_code ? program->image.size() : 0;
  return kSuccess;
}

FAKE_EXPORT Result nvrtcGetCUBIN(Program* program, char* image) {
  return program->machine_code ? give(program->image, image) : kInvalidProgram;
}

FAKE_EXPORT Result nvrtcGetPTXSize(Program* program, std::size_t* bytes) {
  *bytes = program->image.size();
  return kSuccess;
}

FAKE_EXPORT Result nvrtcGetPTX(Program* program, char* image) {
  return give(program->image, image);
}
