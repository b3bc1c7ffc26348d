#include "faces/xla/collective_call.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "faces/xla/call.h"

namespace hvdtune::faces::xla {
namespace {

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
      refuse_call("XLA's data type " + std::to_string(type) + " is not supported by hvdtune");
  }
}

/// The buffers of arguments or results, without the token that orders the calls.
std::vector<Tensor> tensors_of(const FfiBuffers& all) {
  std::vector<Tensor> tensors;
  tensors.reserve(static_cast<std::size_t>(all.size));
  for (std::int64_t i = 0; i < all.size; ++i) {
    const FfiBuffer& buffer = *static_cast<const FfiBuffer*>(all.buffers[i]);
    if (i == 0 && buffer.dtype == kFfiToken) continue;
    tensors.push_back({dtype_of(buffer.dtype),
                       {buffer.dims, static_cast<std::size_t>(buffer.rank)},
                       buffer.data});
  }
  return tensors;
}

FfiErrorCode code_of(ErrorKind kind) {
  if (ends_job(kind)) return kFfiAborted;
  return kind == ErrorKind::kNotInitialized ? kFfiFailedPrecondition : kFfiInvalidArgument;
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
    run_call(read_call(frame->attrs), tensors_of(frame->args), tensors_of(frame->rets));
    return nullptr;
  } catch (const Error& error) {
    return failure(frame->api, code_of(error.kind()), text_of(error).c_str());
  } catch (const std::exception& error) {
    return failure(frame->api, kFfiInternal, error.what());
  }
}

}  // namespace hvdtune::faces::xla
