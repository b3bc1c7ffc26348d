#include "faces/tensorflow/call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace hvdtune::faces::tensorflow {
namespace {

/// (TF_DataType, ours)
constexpr std::array<std::pair<int, DType>, 11> kTypes = {{{1, DType::kFloat32},
                                                           {2, DType::kFloat64},
                                                           {kTfInt32, DType::kInt32},
                                                           {4, DType::kUint8},
                                                           {5, DType::kInt16},
                                                           {6, DType::kInt8},
                                                           {9, DType::kInt64},
                                                           {10, DType::kBool},
                                                           {14, DType::kBfloat16},
                                                           {17, DType::kUint16},
                                                           {19, DType::kFloat16}}};

DType dtype_of(int type) {
  const auto* const found = std::find_if(kTypes.begin(), kTypes.end(),
                                         [type](const auto& pair) { return pair.first == type; });
  if (found == kTypes.end()) refuse("tensors of this type cannot be exchanged");
  return found->second;
}

std::vector<std::int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tf().NumDims(tensor)));
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    shape[dim] = tf().Dim(tensor, static_cast<int>(dim));
  }
  return shape;
}

}  // namespace

int code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kOk:
      return kOk;
    case ErrorKind::kInvalidArgument:
      return kInvalidArgument;
    case ErrorKind::kMismatch:
    case ErrorKind::kNotInitialized:
      return kFailedPrecondition;
    case ErrorKind::kShutdown:
      return kAborted;
    case ErrorKind::kAborted:
    case ErrorKind::kTimeout:
      return kUnknown;
  }
  return kUnknown;
}

Call::Tensor Call::input(int index, const TfStatus& status) {
  TF_Tensor* tensor = nullptr;
  tf().GetInput(context_, index, &tensor, status);
  status.check();
  return Tensor(tensor);
}

/// Adds the tensor of an index, and the memory of its result if its shape is known.
void Call::add_tensor(int index, const TfStatus& status, Submission& submission) {
  Tensor tensor = input(index, status);
  const int type = tf().TensorType(tensor.get());
  const wire::TensorSpec& spec =
      submission.request.tensors.emplace_back(dtype_of(type), shape_of(tensor.get()));
  TensorMemory memory{tf().TensorData(tensor.get()), nullptr};
  types_.push_back(type);
  if (!traits_of(node_.kind).changes_rows) {
    // The context holds the input until the kernel is done; a second holder would prevent the
    // output from reusing its memory.
    tensor.reset();
    int forwarded = -1;
    const Tensor output(
        tf().ForwardInputOrAllocateOutput(context_, &index, 1, index, spec.shape.data(),
                                          static_cast<int>(spec.shape.size()), &forwarded, status));
    status.check();
    memory.out = tf().TensorData(output.get());  // the context holds it
  }
  submission.memory.push_back(memory);
  if (tensor) inputs_.push_back(std::move(tensor));
}

std::vector<std::int64_t> Call::splits(Engine& engine, const wire::TensorSpec& spec) {
  const Tensor given = input(1, TfStatus());
  const std::size_t count = tf().TensorByteSize(given.get()) / sizeof(std::int32_t);
  if (count > 0) {
    const auto* const rows = static_cast<const std::int32_t*>(tf().TensorData(given.get()));
    return {rows, rows + count};
  }
  if (spec.shape.empty()) refuse("alltoall does not support scalar tensors");
  const std::int64_t members = std::max(engine.place_in_set(node_.process_set).second, 1);
  if (spec.shape.front() % members != 0) {
    refuse("alltoall: splits not provided, and the first dimension (" +
           std::to_string(spec.shape.front()) + ") is not divisible by the number of processes (" +
           std::to_string(members) + ")");
  }
  return std::vector<std::int64_t>(static_cast<std::size_t>(members), spec.shape.front() / members);
}

Submission Call::submission(Engine& engine, const std::string& name) {
  Submission submission;
  wire::Request& request = submission.request;
  request.kind = node_.kind;
  request.name = name;
  request.reduce_op = node_.reduce_op;
  request.prescale = node_.prescale;
  request.postscale = node_.postscale;
  request.root = node_.root;
  request.process_set = node_.process_set;
  request.grouped = node_.grouped;
  const int tensors = node_.kind == OpKind::kAlltoall ? 1 : tf().NumInputs(context_);
  const auto count = static_cast<std::size_t>(tensors);
  request.tensors.reserve(count);
  submission.memory.reserve(count);
  types_.reserve(count);
  const TfStatus status;  // one for all: each would allocate memory
  for (int index = 0; index < tensors; ++index) add_tensor(index, status, submission);
  if (node_.kind == OpKind::kAlltoall) {
    submission.splits = splits(engine, request.tensors.front());
  }
  if (node_.kind != OpKind::kReducescatter) return submission;
  for (const wire::TensorSpec& spec : request.tensors) {
    if (spec.shape.empty()) refuse("reducescatter does not support scalar tensors");
  }
  return submission;
}

/// The engine's memory becomes the output's.
void Call::set_rows(int index, OwnedBuffer& rows) {
  auto kept = std::make_unique<OwnedBuffer>(std::move(rows));
  const OwnedBuffer& buffer = *kept;
  const auto let_go = [](void* /*data*/, std::size_t /*bytes*/, void* owner) {
    delete static_cast<OwnedBuffer*>(owner);
  };
  const Tensor tensor(tf().NewTensor(types_[static_cast<std::size_t>(index)], buffer.shape().data(),
                                     static_cast<int>(buffer.shape().size()), buffer.data(),
                                     buffer.bytes(), let_go, kept.release()));
  const TfStatus status;
  tf().SetOutput(context_, index, tensor.get(), status);
  status.check();
}

void Call::set_counts(const std::vector<std::int64_t>& counts) {
  const auto members = static_cast<std::int64_t>(counts.size());
  const TfStatus status;
  const Tensor tensor(tf().AllocateOutput(context_, 1, kTfInt32, &members, 1,
                                          counts.size() * sizeof(std::int32_t), status));
  status.check();
  auto* const rows = static_cast<std::int32_t*>(tf().TensorData(tensor.get()));
  for (std::size_t i = 0; i < counts.size(); ++i) rows[i] = static_cast<std::int32_t>(counts[i]);
}

void Call::deliver(Operation& operation) {
  if (!operation.status.ok()) return fail(operation.status);
  try {
    for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
      set_rows(static_cast<int>(i), operation.outputs[i]);
    }
    if (node_.kind == OpKind::kAlltoall) set_counts(operation.numbers);
  } catch (const Error& error) {
    return fail(error.status());
  } catch (const std::exception& error) {
    return fail({ErrorKind::kInvalidArgument, error.what()});
  }
  inputs_.clear();
}

void Call::fail(const Status& status) {
  inputs_.clear();
  const int code = code_of(status.kind);
  // Code that restarts training recognises a failed operation by this.
  const bool lost = code == kUnknown || code == kAborted;
  TfStatus reason;
  reason.set(code, lost ? node_.type + ": " + status.text : status.text);
  tf().OpKernelContext_Failure(context_, reason);
}

}  // namespace hvdtune::faces::tensorflow
