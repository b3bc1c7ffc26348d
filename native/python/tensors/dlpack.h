#pragma once

#include <Python.h>

#include <cstdint>

namespace hvdtune::python::dlpack {

// The part of DLPack's C exchange interface that is used here (version 1): a framework's type
// offers it in a capsule, its attribute `__dlpack_c_exchange_api__`. Names as in its header.

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kCapsule = "dlpack_exchange_api";

inline constexpr std::int32_t kDLCPU = 1;

enum DLDataTypeCode : std::uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLBool = 6,
};

struct DLTensor {
  void* data;
  struct {
    std::int32_t type;
    std::int32_t id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous, the last dimension varies fastest
  std::uint64_t byte_offset;
};

struct ExchangeAPI {
  std::uint32_t major;
  std::uint32_t minor;
  void* older;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  /// Describes a tensor without owning it; -1 with a Python error. May be null.
  int (*tensor_from_py_object)(void* object, DLTensor* out);
  void* current_work_stream;
};

}  // namespace hvdtune::python::dlpack
