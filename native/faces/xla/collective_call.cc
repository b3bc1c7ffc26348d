#include "faces/xla/collective_call.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "faces/running_engine.h"

namespace hvdtune::faces::xla {
namespace {

constexpr Nanos kLongWait = 3600 * kSecond;

[[noreturn]] void refuse_call(const std::string& text) {
  throw Error(ErrorKind::kInvalidArgument, text);
}

/// What a call is compiled with; borrowed from the frame.
struct Call {
  std::string_view name;
  std::span<const std::int64_t> numbers;
  std::span<const double> factors;
  std::span<const std::int64_t> splits;
  std::span<const std::int64_t> received;

  [[nodiscard]] std::int64_t number(CallNumber which) const {
    return numbers[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] OpKind kind() const { return static_cast<OpKind>(number(kCallKind)); }
  [[nodiscard]] auto process_set() const {
    return static_cast<std::uint32_t>(number(kCallProcessSet));
  }
  /// Whether the number of rows of the result depends on the ranks.
  [[nodiscard]] bool changes_rows() const {
    return kind() != OpKind::kAllreduce && kind() != OpKind::kBroadcast;
  }
};

template <typename Element>
std::span<const Element> array_of(const void* attribute) {
  const auto* const array = static_cast<const FfiArray*>(attribute);
  return {static_cast<const Element*>(array->data), array->size};
}

Call read_call(const FfiAttributes& attributes) {
  Call call;
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const std::string_view name(attributes.names[i]->ptr, attributes.names[i]->len);
    const void* const value = attributes.attrs[i];
    if (name == "name") {
      const auto* const text = static_cast<const FfiByteSpan*>(value);
      call.name = {text->ptr, text->len};
    } else if (name == "numbers") {
      call.numbers = array_of<std::int64_t>(value);
    } else if (name == "factors") {
      call.factors = array_of<double>(value);
    } else if (name == "splits") {
      const std::span<const std::int64_t> both = array_of<std::int64_t>(value);
      call.splits = both.first(both.size() / 2);
      call.received = both.last(both.size() - both.size() / 2);
    }
  }
  if (call.numbers.size() != kCallNumbers || call.factors.size() != 2) {
    refuse_call("hvdtune's custom call was compiled by another version of hvdtune");
  }
  return call;
}

DType dtype_of(FfiDataType type) {
  switch (type) {
    case kFfiPred:
      return DType::kBool;
    case kFfiS8:
      return DType::kInt8;
    case kFfiS16:
      return DType::kInt16;
    case kFfiS32:
      return DType::kInt32;
    case kFfiS64:
      return DType::kInt64;
    case kFfiU8:
      return DType::kUint8;
    case kFfiU16:
      return DType::kUint16;
    case kFfiF16:
      return DType::kFloat16;
    case kFfiF32:
      return DType::kFloat32;
    case kFfiF64:
      return DType::kFloat64;
    case kFfiBf16:
      return DType::kBfloat16;
    default:
      refuse_call("XLA's data type " + std::to_string(type) + " is none that hvdtune knows");
  }
}

/// The buffers of arguments or results, without the token that orders the calls.
class Tensors {
 public:
  explicit Tensors(const FfiBuffers& all)
      : first_(all.buffers), count_(static_cast<std::size_t>(all.size)) {
    if (count_ > 0 && (*this)[0].dtype == kFfiToken) {
      ++first_;
      --count_;
    }
  }

  [[nodiscard]] std::size_t size() const { return count_; }
  const FfiBuffer& operator[](std::size_t i) const {
    return *static_cast<const FfiBuffer*>(first_[i]);
  }
  [[nodiscard]] std::span<const std::int64_t> shape(std::size_t i) const {
    const FfiBuffer& buffer = (*this)[i];
    return {buffer.dims, static_cast<std::size_t>(buffer.rank)};
  }

 private:
  void** first_;
  std::size_t count_;
};

std::size_t bytes_of(const FfiBuffer& buffer) {
  std::size_t bytes = dtype_size(dtype_of(buffer.dtype));
  for (std::int64_t i = 0; i < buffer.rank; ++i) bytes *= static_cast<std::size_t>(buffer.dims[i]);
  return bytes;
}

/// A program outlives a job: the next one may have other ranks.
void check_place(Engine& engine, const Call& call) {
  const auto [index, members] = engine.place_in_set(call.process_set());
  if (index < 0) return;  // the engine says why
  if (members == call.number(kCallMembers) && index == call.number(kCallIndex)) return;
  refuse_call("tensor " + std::string(call.name) + ": the program was compiled for rank " +
              std::to_string(call.number(kCallIndex)) + " of " +
              std::to_string(call.number(kCallMembers)) + ", and this is rank " +
              std::to_string(index) + " of " + std::to_string(members) +
              ", for which the shapes of its results differ; call jax.clear_caches() after a "
              "change of the ranks");
}

/// Waits for an operation. `results`: those of its tensors, for what the engine has allocated.
void finish(Engine& engine, std::int64_t handle, const Call& call, const Tensors& results,
            std::size_t first) {
  if (engine.retire(handle)) return;
  if (!engine.is_done(handle)) {
    while (!engine.wait(handle, monotonic_now() + kLongWait)) continue;
    if (engine.retire(handle)) return;
  }
  const OperationPtr operation = engine.take(handle);
  if (!operation) return;
  if (!operation->status.ok()) throw Error(operation->status);
  if (!call.received.empty() && !std::ranges::equal(call.received, operation->numbers)) {
    throw Error(ErrorKind::kMismatch,
                "tensor " + std::string(call.name) +
                    ": the ranks do not send this rank the rows that received_splits says");
  }
  for (std::size_t i = 0; i < operation->outputs.size(); ++i) {
    const OwnedBuffer& output = operation->outputs[i];
    const FfiBuffer& result = results[first + i];
    if (call.number(kCallEqual) != 0 || output.bytes() != bytes_of(result)) {
      const std::int64_t rows = call.number(kCallEqual) != 0 ? -1 : result.dims[0];
      throw Error(ErrorKind::kMismatch,
                  "tensor " + std::string(call.name) + ": the ranks bring " +
                      std::to_string(output.shape()[0]) + " rows to this rank, where the program " +
                      (rows < 0 ? std::string("was compiled for the same number from every rank")
                                : "was compiled for " + std::to_string(rows)) +
                      "; inside jax.jit the numbers must be equal, or given as sizes");
    }
    if (output.bytes() > 0) std::memcpy(result.data, output.data(), output.bytes());
  }
}

TensorMemory memory_of(const Call& call, const FfiBuffer& tensor, const FfiBuffer& result) {
  const bool room = !call.changes_rows() || call.number(kCallEqual) != 0;
  return {tensor.data, room ? result.data : nullptr};
}

TensorOperation describe(const Call& call, std::string_view name, const Tensors& tensors,
                         const Tensors& results, std::size_t i) {
  return {.kind = call.kind(),
          .root = static_cast<std::int32_t>(call.number(kCallRoot)),
          .name = name,
          .process_set = call.process_set(),
          .reduce_op = static_cast<ReduceOp>(call.number(kCallReduceOp)),
          .prescale = call.factors[0],
          .postscale = call.factors[1],
          .dtype = dtype_of(tensors[i].dtype),
          .shape = tensors.shape(i),
          .memory = memory_of(call, tensors[i], results[i])};
}

Submission submission_of(const Call& call, std::string_view name, const Tensors& tensors,
                         const Tensors& results, std::size_t i) {
  const TensorOperation described = describe(call, name, tensors, results, i);
  return {described.request(), {described.memory}, {call.splits.begin(), call.splits.end()}};
}

/// All tensors as one operation.
void run_group(Engine& engine, const Call& call, const Tensors& tensors, const Tensors& results) {
  Submission group = submission_of(call, call.name, tensors, results, 0);
  group.request.grouped = true;
  group.request.tensors.reserve(tensors.size());
  group.memory.reserve(tensors.size());
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const std::span<const std::int64_t> shape = tensors.shape(i);
    group.request.tensors.push_back({dtype_of(tensors[i].dtype), {shape.begin(), shape.end()}});
    group.memory.push_back(memory_of(call, tensors[i], results[i]));
  }
  finish(engine, engine.submit_blocking(std::move(group)), call, results, 0);
}

/// Each tensor as an operation of its own; all are under way before the first is waited for.
void run_each(Engine& engine, const Call& call, const Tensors& tensors, const Tensors& results) {
  std::vector<std::int64_t> handles;
  handles.reserve(tensors.size());
  Status first_error;
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = std::string(call.name) + "." + std::to_string(i);
      handles.push_back(call.splits.empty()
                            ? engine.submit(describe(call, name, tensors, results, i))
                            : engine.submit(submission_of(call, name, tensors, results, i)));
    }
  } catch (const Error& error) {
    first_error = error.status();
  } catch (const std::exception& error) {
    first_error = {ErrorKind::kInvalidArgument, error.what()};
  }
  // All of them, whatever happens: their memory is XLA's as soon as this returns.
  for (std::size_t i = 0; i < handles.size(); ++i) {
    try {
      finish(engine, handles[i], call, results, i);
    } catch (const Error& error) {
      if (first_error.ok()) first_error = error.status();
    } catch (const std::exception& error) {
      if (first_error.ok()) first_error = {ErrorKind::kInvalidArgument, error.what()};
    }
  }
  if (!first_error.ok()) throw Error(first_error);
}

void run(const FfiCallFrame& frame) {
  const Call call = read_call(frame.attrs);
  const Tensors tensors(frame.args);
  const Tensors results(frame.rets);
  if (tensors.size() == 0 || tensors.size() != results.size()) {
    refuse_call("hvdtune's custom call takes tensors, and returns as many");
  }
  const std::shared_ptr<Engine> engine = running_engine();
  if (call.changes_rows()) check_place(*engine, call);
  if (call.number(kCallGrouped) != 0) {
    run_group(*engine, call, tensors, results);
  } else if (tensors.size() > 1) {
    run_each(*engine, call, tensors, results);
  } else if (!call.splits.empty()) {
    Submission alltoall = submission_of(call, call.name, tensors, results, 0);
    finish(*engine, engine->submit_blocking(std::move(alltoall)), call, results, 0);
  } else {
    const TensorOperation single = describe(call, call.name, tensors, results, 0);
    finish(*engine, engine->submit_blocking(single), call, results, 0);
  }
}

FfiErrorCode code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kMismatch:
      return kFfiInvalidArgument;
    case ErrorKind::kNotInitialized:
      return kFfiFailedPrecondition;
    default:
      return kFfiAborted;
  }
}

FfiError* failure(const FfiApi* api, FfiErrorCode code, const char* text) {
  FfiErrorCreateArgs args = {offsetof(FfiErrorCreateArgs, errc) + sizeof(args.errc), nullptr, text,
                             code};
  return api->error_create(&args);
}

}  // namespace

FfiError* call_collective(FfiCallFrame* frame) {
  FfiExtension* const extension = frame->extension_start;
  if (extension != nullptr && extension->type == kFfiMetadata) {
    FfiMetadata& metadata = *reinterpret_cast<FfiMetadataExtension*>(extension)->metadata;
    metadata.api_version = {sizeof(FfiVersion), nullptr, kFfiMajor, kFfiMinor};
    metadata.traits = 0;
    return nullptr;
  }
  try {
    run(*frame);
    return nullptr;
  } catch (const Error& error) {
    const FfiErrorCode code = code_of(error.kind());
    // Whoever starts training over knows a failed operation by this.
    const std::string text = code == kFfiAborted ? "hvdtune: " : "";
    return failure(frame->api, code, (text + error.what()).c_str());
  } catch (const std::exception& error) {
    return failure(frame->api, kFfiInternal, error.what());
  }
}

}  // namespace hvdtune::faces::xla
