#include "device/libraries/profiler.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "device/libraries/shared_library.h"

namespace hvdtune {
namespace {

/// The function pointers that a profiler fills in, for all modules: it may also fill in functions
/// that are never called here.
struct Places {
  static constexpr unsigned int kMost = 16;

  Places() {
    for (std::size_t m = 0; m < nvtx::kModules; ++m) {
      for (unsigned int f = 1; f < nvtx::kModuleSizes[m]; ++f) tables[m][f] = &functions[m][f];
    }
  }

  nvtx::AnyFunction functions[nvtx::kModules][kMost] = {};
  nvtx::AnyFunction* tables[nvtx::kModules][kMost + 1] = {};
};

/// The protocol cannot distinguish several sets of pointers, so the process has one.
Places& places() {
  static Places of_process;
  return of_process;
}

int module_table(int module, nvtx::AnyFunction*** table, unsigned int* size) {
  if (module <= 0 || module >= nvtx::kModules) return 0;
  if (table != nullptr) *table = places().tables[module];
  if (size != nullptr) *size = nvtx::kModuleSizes[module];
  return 1;
}

const void* export_table(std::uint32_t table) {
  static constexpr nvtx::ExportTableCallbacks kCallbacks{sizeof kCallbacks, module_table};
  static constexpr nvtx::ExportTableVersionInfo kVersion{sizeof kVersion, nvtx::kVersion, 0,
                                                         [](std::uint32_t) {}};
  if (table == nvtx::kCallbacks) return &kCallbacks;
  if (table == nvtx::kVersionInfo) return &kVersion;
  return nullptr;
}

template <class Function>
Function filled(unsigned int function) {
  return reinterpret_cast<Function>(places().functions[nvtx::kCore2][function]);
}

nvtx::EventAttributes named(const char* name) {
  nvtx::EventAttributes attributes{};
  attributes.version = nvtx::kVersion;
  attributes.size = sizeof attributes;
  attributes.message_type = nvtx::kAscii;
  attributes.message = name;
  return attributes;
}

}  // namespace

const Profiler& Profiler::attach(const std::string& path) {
  static std::mutex mutex;
  // Never freed: threads may use it until the process ends.
  static const Profiler* attached = nullptr;
  const std::lock_guard lock(mutex);
  if (attached == nullptr) attached = new Profiler(path);
  return *attached;
}

Profiler::Profiler(const std::string& path) {
  const SharedLibrary library("the profiler's NVTX library", path, SharedLibrary::Binding::kLazy);
  int (*initialize)(nvtx::GetExportTable) = nullptr;
  library.find(initialize, nvtx::kEntryPoint, "one for NVTX 3");
  if (initialize(export_table) == 0) {
    for (auto& of_module : places().functions) std::ranges::fill(of_module, nullptr);
    throw Error(ErrorKind::kInvalidArgument,
                "the profiler's NVTX library at " + path + " declines to be used");
  }
  start_ = filled<nvtx::StartRange>(nvtx::kDomainRangeStartEx);
  end_ = filled<nvtx::EndRange>(nvtx::kDomainRangeEnd);
  push_ = filled<nvtx::PushRange>(nvtx::kDomainRangePushEx);
  pop_ = filled<nvtx::PopRange>(nvtx::kDomainRangePop);
  const auto create = filled<nvtx::CreateDomain>(nvtx::kDomainCreateA);
  if (create != nullptr) domain_ = create("hvdtune");
}

ProfilerSpan::ProfilerSpan(const Profiler* profiler, const char* name)
    : profiler_(profiler != nullptr && profiler->push_ != nullptr && profiler->pop_ != nullptr
                    ? profiler
                    : nullptr) {
  if (profiler_ == nullptr) return;
  const nvtx::EventAttributes attributes = named(name);
  profiler_->push_(profiler_->domain_, &attributes);
}

ProfilerSpan::~ProfilerSpan() {
  if (profiler_ != nullptr) profiler_->pop_(profiler_->domain_);
}

ProfilerRange::ProfilerRange(const Profiler* profiler, const char* name)
    : profiler_(profiler != nullptr && profiler->start_ != nullptr && profiler->end_ != nullptr
                    ? profiler
                    : nullptr) {
  if (profiler_ == nullptr) return;
  const nvtx::EventAttributes attributes = named(name);
  id_ = profiler_->start_(profiler_->domain_, &attributes);
}

void ProfilerRange::end() {
  if (profiler_ == nullptr) return;
  profiler_->end_(profiler_->domain_, id_);
  profiler_ = nullptr;
}

}  // namespace hvdtune
