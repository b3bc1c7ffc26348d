#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdtune {

/// Element types of tensors. The numbers travel on the wire and through the Python binding.
enum class DType : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
};

inline constexpr int kDTypeCount = 11;

/// Size of one element in bytes; every size divides 8.
constexpr std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
      return 1;
    case DType::kUint16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kFloat64:
      return 8;
  }
  return 0;
}

/// The name that error messages and the timeline show, e.g. "float32".
constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
      return "uint8";
    case DType::kInt8:
      return "int8";
    case DType::kUint16:
      return "uint16";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBool:
      return "bool";
    case DType::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

constexpr bool is_valid_dtype(int code) { return code >= 0 && code < kDTypeCount; }

}  // namespace hvdtune
