#include "wire/request.h"

namespace hvdtune::wire {
namespace {

template <typename E>
E checked_enum(std::uint8_t code, std::uint8_t limit, const char* what) {
  if (code >= limit) throw DecodeError(std::string("unknown ") + what + " in a message");
  return static_cast<E>(code);
}

}  // namespace

std::int64_t TensorSpec::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) count *= dim;
  return count;
}

std::int64_t TensorSpec::bytes() const {
  return elements() * static_cast<std::int64_t>(dtype_size(dtype));
}

std::int64_t Request::bytes() const {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.bytes();
  return sum;
}

void Request::encode(Encoder& out) const {
  out.put(process_set).put(kind).put(reduce_op).put(grouped).put(cacheable).put(root).put(device);
  out.put(prescale).put(postscale).put(name);
  out.put(static_cast<std::uint32_t>(tensors.size()));
  for (const TensorSpec& tensor : tensors) {
    out.put(tensor.dtype);
    out.put_all(tensor.shape);
  }
  out.put_all(ranks);
}

Request Request::decode(Decoder& in) {
  Request request;
  request.process_set = in.get<std::uint32_t>();
  request.kind = checked_enum<OpKind>(in.get<std::uint8_t>(), kOpKindCount, "operation");
  request.reduce_op = checked_enum<ReduceOp>(in.get<std::uint8_t>(), 6, "reduction");
  request.grouped = in.get<std::uint8_t>() != 0;
  request.cacheable = in.get<std::uint8_t>() != 0;
  request.root = in.get<std::int32_t>();
  request.device = in.get<std::int32_t>();
  if (request.device < kOnHost) throw DecodeError("no such device in a message");
  request.prescale = in.get<double>();
  request.postscale = in.get<double>();
  request.name = in.get_string();
  request.tensors.resize(in.get_count(sizeof(std::uint8_t) + sizeof(std::uint32_t)));
  for (TensorSpec& tensor : request.tensors) {
    tensor.dtype = checked_enum<DType>(in.get<std::uint8_t>(), kDTypeCount, "dtype");
    tensor.shape = in.get_all<std::int64_t>();
  }
  request.ranks = in.get_all<std::int32_t>();
  return request;
}

const char* operation_label(const Request& request) {
  const bool adasum = request.kind == OpKind::kAllreduce && request.reduce_op == ReduceOp::kAdasum;
  return adasum ? "ADASUM" : op_kind_name(request.kind);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
  return shape_text({ranks.begin(), ranks.end()});
}

std::string tensor_name(const Request& request, std::size_t index) {
  if (!request.grouped) return request.name;
  return request.name + "_" + std::to_string(index + 1) + "of" +
         std::to_string(request.tensors.size());
}

}  // namespace hvdtune::wire
