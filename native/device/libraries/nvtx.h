#pragma once

#include <cstddef>
#include <cstdint>

// The interface between a program and a profiler that NVTX 3 defines: the profiler's library is
// given tables of pointers to functions, and fills in those that it wants the program to call. This
// needs nothing linked or installed.

namespace hvdtune::nvtx {

using AnyFunction = void (*)();
using GetExportTable = const void* (*)(std::uint32_t table);
/// The library's function kEntryPoint. Returns 0 if it does not want to be used.
using InitializeInjection = int (*)(GetExportTable);

inline constexpr const char* kEntryPoint = "InitializeInjectionNvtx2";
inline constexpr std::uint16_t kVersion = 3;

// Argument of GetExportTable.
inline constexpr std::uint32_t kCallbacks = 1;
inline constexpr std::uint32_t kVersionInfo = 3;

struct ExportTableCallbacks {
  std::size_t struct_size;
  /// `table`: addresses of function pointers, by number; the first and the one after the last are
  /// null. Returns 0 if there is no such module.
  int (*GetModuleFunctionTable)(int module, AnyFunction*** table, unsigned int* size);
};

struct ExportTableVersionInfo {
  std::size_t struct_size;
  std::uint32_t version;
  std::uint32_t reserved0;
  void (*SetInjectionNvtxVersion)(std::uint32_t version);
};

/// Number of function numbers of each module, including 0. Modules are numbered from 1.
inline constexpr unsigned int kModuleSizes[] = {0, 16, 9, 15, 7, 16, 7};
inline constexpr int kModules = 7;
inline constexpr int kCore2 = 5;

// Functions of kCore2.
inline constexpr unsigned int kDomainRangeStartEx = 2;
inline constexpr unsigned int kDomainRangeEnd = 3;
inline constexpr unsigned int kDomainRangePushEx = 4;
inline constexpr unsigned int kDomainRangePop = 5;
inline constexpr unsigned int kDomainCreateA = 12;

using Domain = void*;

struct EventAttributes {
  std::uint16_t version;
  std::uint16_t size;
  std::uint32_t category;
  std::int32_t color_type;
  std::uint32_t color;
  std::int32_t payload_type;
  std::int32_t reserved0;
  std::uint64_t payload;
  std::int32_t message_type;
  const char* message;
};
inline constexpr std::int32_t kAscii = 1;  // a message_type

using CreateDomain = Domain (*)(const char* name);
using StartRange = std::uint64_t (*)(Domain, const EventAttributes*);
using EndRange = void (*)(Domain, std::uint64_t range);
using PushRange = int (*)(Domain, const EventAttributes*);
using PopRange = int (*)(Domain);

}  // namespace hvdtune::nvtx
