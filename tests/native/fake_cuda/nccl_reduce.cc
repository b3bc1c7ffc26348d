#include "nccl_reduce.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"

namespace fake_cuda {
namespace {

/// A type as it lies in memory, and as it is reckoned with.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

struct Half {
  using Stored = std::uint16_t;
  using Value = float;
  static float load(Stored value) { return hvdtune::float16_to_float(value); }
  static Stored store(float value) { return hvdtune::float_to_float16(value); }
};

struct Brain {
  using Stored = std::uint16_t;
  using Value = float;
  static float load(Stored value) { return hvdtune::bfloat16_to_float(value); }
  static Stored store(float value) { return hvdtune::float_to_bfloat16(value); }
};

template <class Value>
Value combine(Value a, Value b, NcclOp op) {
  switch (op) {
    case NcclOp::kProd:
      return static_cast<Value>(a * b);
    case NcclOp::kMax:
      return std::max(a, b);
    case NcclOp::kMin:
      return std::min(a, b);
    default:
      return static_cast<Value>(a + b);
  }
}

template <class Kind>
void reduce_as(std::byte* out, const std::vector<const std::byte*>& in, std::size_t count,
               NcclOp op, double scalar) {
  using Stored = typename Kind::Stored;
  using Value = typename Kind::Value;
  const auto at = [&](std::size_t member, std::size_t index) {
    Stored stored;
    std::memcpy(&stored, in[member] + index * sizeof stored, sizeof stored);
    const Value value = Kind::load(stored);
    return scalar == 1.0 ? value : static_cast<Value>(value * static_cast<Value>(scalar));
  };
  for (std::size_t index = 0; index < count; ++index) {
    Value all = at(0, index);
    for (std::size_t member = 1; member < in.size(); ++member) {
      all = combine(all, at(member, index), op);
    }
    if (op == NcclOp::kAvg) all = static_cast<Value>(all / static_cast<Value>(in.size()));
    const Stored stored = Kind::store(all);
    std::memcpy(out + index * sizeof stored, &stored, sizeof stored);
  }
}

}  // namespace

std::size_t nccl_size(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
    case NcclType::kUint8:
      return 1;
    case NcclType::kFloat16:
    case NcclType::kBfloat16:
      return 2;
    case NcclType::kInt32:
    case NcclType::kUint32:
    case NcclType::kFloat32:
      return 4;
    case NcclType::kInt64:
    case NcclType::kUint64:
    case NcclType::kFloat64:
      return 8;
  }
  return 0;
}

void nccl_reduce(std::byte* out, const std::vector<const std::byte*>& in, std::size_t count,
                 NcclType type, NcclOp op, double scalar) {
  switch (type) {
    case NcclType::kInt8:
      return reduce_as<Plain<std::int8_t>>(out, in, count, op, scalar);
    case NcclType::kUint8:
      return reduce_as<Plain<std::uint8_t>>(out, in, count, op, scalar);
    case NcclType::kInt32:
      return reduce_as<Plain<std::int32_t>>(out, in, count, op, scalar);
    case NcclType::kUint32:
      return reduce_as<Plain<std::uint32_t>>(out, in, count, op, scalar);
    case NcclType::kInt64:
      return reduce_as<Plain<std::int64_t>>(out, in, count, op, scalar);
    case NcclType::kUint64:
      return reduce_as<Plain<std::uint64_t>>(out, in, count, op, scalar);
    case NcclType::kFloat16:
      return reduce_as<Half>(out, in, count, op, scalar);
    case NcclType::kBfloat16:
      return reduce_as<Brain>(out, in, count, op, scalar);
    case NcclType::kFloat32:
      return reduce_as<Plain<float>>(out, in, count, op, scalar);
    case NcclType::kFloat64:
      return reduce_as<Plain<double>>(out, in, count, op, scalar);
  }
}

}  // namespace fake_cuda
