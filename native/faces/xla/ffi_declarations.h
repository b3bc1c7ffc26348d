// The part of XLA's FFI that hvdtune's custom call uses: a C interface, whose structs are declared
// here with XLA's field names, so that nothing is compiled against XLA.
//
// A runtime accepts handlers of its own version of the interface and of older ones. Everything
// below has existed since version 0.1, and has had this layout in every version since.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdtune::faces::xla {

inline constexpr int kFfiMajor = 0;
inline constexpr int kFfiMinor = 1;

struct FfiError;    // XLA_FFI_Error
struct FfiFuture;   // XLA_FFI_Future
struct FfiContext;  // XLA_FFI_ExecutionContext
struct FfiInternalApi;

enum FfiExtensionType : int { kFfiMetadata = 1 };

struct FfiExtension {
  std::size_t struct_size;
  FfiExtensionType type;
  FfiExtension* next;
};

struct FfiVersion {
  std::size_t struct_size;
  FfiExtension* extension_start;
  int major_version;
  int minor_version;
};

/// Data that a runtime requests from a handler before it calls it.
struct FfiMetadata {
  std::size_t struct_size;
  FfiVersion api_version;
  std::uint32_t traits;
};

struct FfiMetadataExtension {
  FfiExtension extension_base;
  FfiMetadata* metadata;
};

/// The codes of absl::StatusCode.
enum FfiErrorCode : int {
  kFfiInvalidArgument = 3,
  kFfiFailedPrecondition = 9,
  kFfiAborted = 10,
  kFfiInternal = 13,
};

struct FfiErrorCreateArgs {
  std::size_t struct_size;
  FfiExtension* extension_start;
  const char* message;
  FfiErrorCode errc;
};

/// The beginning of XLA_FFI_Api.
struct FfiApi {
  std::size_t struct_size;
  FfiExtension* extension_start;
  FfiVersion api_version;
  const FfiInternalApi* internal_api;
  FfiError* (*error_create)(FfiErrorCreateArgs*);
};

enum FfiDataType : int {
  kFfiPred = 1,
  kFfiS8 = 2,
  kFfiS16 = 3,
  kFfiS32 = 4,
  kFfiS64 = 5,
  kFfiU8 = 6,
  kFfiU16 = 7,
  kFfiF16 = 10,
  kFfiF32 = 11,
  kFfiF64 = 12,
  kFfiBf16 = 16,
  kFfiToken = 17,
};

struct FfiBuffer {
  std::size_t struct_size;
  FfiExtension* extension_start;
  FfiDataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

/// XLA_FFI_Args and XLA_FFI_Rets: buffers are the only type there is.
struct FfiBuffers {
  std::size_t struct_size;
  FfiExtension* extension_start;
  std::int64_t size;
  int* types;
  void** buffers;
};

struct FfiByteSpan {
  const char* ptr;
  std::size_t len;
};

struct FfiArray {
  FfiDataType dtype;
  std::size_t size;
  void* data;
};

enum FfiAttributeType : int { kFfiArray = 1, kFfiString = 4 };

/// Sorted by name.
struct FfiAttributes {
  std::size_t struct_size;
  FfiExtension* extension_start;
  std::int64_t size;
  int* types;
  FfiByteSpan** names;
  void** attrs;
};

struct FfiCallFrame {
  std::size_t struct_size;
  FfiExtension* extension_start;
  const FfiApi* api;
  FfiContext* ctx;
  int stage;
  FfiBuffers args;
  FfiBuffers rets;
  FfiAttributes attrs;
  FfiFuture* future;
};

}  // namespace hvdtune::faces::xla
