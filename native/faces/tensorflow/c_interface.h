// The part of TensorFlow's C interface that operations and their kernels need. It is declared here,
// and its functions are found in the library that the process has loaded, so that one binary works
// with every TensorFlow. Source: tensorflow/c/{ops,kernels,tf_status,tf_tensor,tf_datatype}.h of
// TensorFlow 2.19 to 2.21.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

extern "C" {
// TensorFlow's own types; only pointers to them are used here.
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_StringView {  // NOLINT(readability-identifier-naming)
  const char* data;
  std::size_t len;
};
}

namespace hvdtune::faces::tensorflow {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void* kernel, TF_OpKernelContext*);
using AsyncComputeFunction = void (*)(void* kernel, TF_OpKernelContext*,
                                      TF_AsyncOpKernelDoneCallback*);
using DeleteFunction = void (*)(void* kernel);
using Deallocator = void (*)(void* data, std::size_t bytes, void* argument);

/// A TF_DataType; call.cc has the others.
inline constexpr int kTfInt32 = 3;

/// Codes of TF_Status.
enum Code : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
};

// Result, name after TF_, parameters.
#define HVDTUNE_TENSORFLOW_FUNCTIONS(FUNCTION)                                                    \
  FUNCTION(TF_Status*, NewStatus, ())                                                             \
  FUNCTION(void, DeleteStatus, (TF_Status*))                                                      \
  FUNCTION(void, SetStatus, (TF_Status*, int code, const char* text))                             \
  FUNCTION(int, GetCode, (const TF_Status*))                                                      \
  FUNCTION(const char*, Message, (const TF_Status*))                                              \
  FUNCTION(TF_Tensor*, NewTensor,                                                                 \
           (int dtype, const std::int64_t* dims, int rank, void* data, std::size_t bytes,         \
            Deallocator, void* argument))                                                         \
  FUNCTION(void, DeleteTensor, (TF_Tensor*))                                                      \
  FUNCTION(int, TensorType, (const TF_Tensor*))                                                   \
  FUNCTION(int, NumDims, (const TF_Tensor*))                                                      \
  FUNCTION(std::int64_t, Dim, (const TF_Tensor*, int dim))                                        \
  FUNCTION(std::size_t, TensorByteSize, (const TF_Tensor*))                                       \
  FUNCTION(void*, TensorData, (const TF_Tensor*))                                                 \
  FUNCTION(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char* type))                   \
  FUNCTION(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))              \
  FUNCTION(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))             \
  FUNCTION(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))            \
  FUNCTION(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))               \
  FUNCTION(void, OpDefinitionBuilderSetShapeInferenceFunction,                                    \
           (TF_OpDefinitionBuilder*, ShapeFunction))                                              \
  FUNCTION(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                     \
  FUNCTION(std::int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))             \
  FUNCTION(TF_ShapeHandle*, NewShapeHandle, ())                                                   \
  FUNCTION(void, DeleteShapeHandle, (TF_ShapeHandle*))                                            \
  FUNCTION(void, ShapeInferenceContextGetInput,                                                   \
           (TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*))                   \
  FUNCTION(void, ShapeInferenceContextSetOutput,                                                  \
           (TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*))                   \
  FUNCTION(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))             \
  FUNCTION(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize,                                  \
           (TF_ShapeInferenceContext*, std::size_t))                                              \
  FUNCTION(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))     \
  FUNCTION(std::int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*)) \
  FUNCTION(void, ShapeInferenceContextSubshape,                                                   \
           (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t begin, std::int64_t end,     \
            TF_ShapeHandle* result, TF_Status*))                                                  \
  FUNCTION(void, ShapeInferenceContextConcatenateShapes,                                          \
           (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle * result, \
            TF_Status*))                                                                          \
  FUNCTION(                                                                                       \
      TF_KernelBuilder*, NewKernelBuilder,                                                        \
      (const char* type, const char* device, CreateFunction, ComputeFunction, DeleteFunction))    \
  FUNCTION(TF_KernelBuilder*, NewAsyncKernelBuilder,                                              \
           (const char* type, const char* device, CreateFunction, AsyncComputeFunction,           \
            DeleteFunction))                                                                      \
  FUNCTION(void, RegisterKernelBuilder, (const char* name, TF_KernelBuilder*, TF_Status*))        \
  FUNCTION(TF_StringView, OpKernelConstruction_GetName, (TF_OpKernelConstruction*))               \
  FUNCTION(void, OpKernelConstruction_GetAttrInt64,                                               \
           (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*))                    \
  FUNCTION(void, OpKernelConstruction_GetAttrFloat,                                               \
           (TF_OpKernelConstruction*, const char*, float*, TF_Status*))                           \
  FUNCTION(void, OpKernelConstruction_GetAttrBool,                                                \
           (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                   \
  FUNCTION(void, OpKernelConstruction_GetAttrSize,                                                \
           (TF_OpKernelConstruction*, const char*, std::int32_t* elements, std::int32_t* bytes,   \
            TF_Status*))                                                                          \
  FUNCTION(void, OpKernelConstruction_GetAttrString,                                              \
           (TF_OpKernelConstruction*, const char*, char*, std::size_t bytes, TF_Status*))         \
  FUNCTION(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))            \
  FUNCTION(std::int64_t, GetIterId, (TF_OpKernelContext*))                                        \
  FUNCTION(int, NumInputs, (TF_OpKernelContext*))                                                 \
  FUNCTION(void, GetInput, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))             \
  FUNCTION(TF_Tensor*, AllocateOutput,                                                            \
           (TF_OpKernelContext*, int index, int dtype, const std::int64_t* dims, int rank,        \
            std::size_t bytes, TF_Status*))                                                       \
  FUNCTION(TF_Tensor*, ForwardInputOrAllocateOutput,                                              \
           (TF_OpKernelContext*, const int* candidates, int count, int index,                     \
            const std::int64_t* dims, int rank, int* forwarded, TF_Status*))                      \
  FUNCTION(void, SetOutput, (TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*))       \
  FUNCTION(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))

/// The functions of TensorFlow that are used here, without their prefix TF_.
struct CInterface {
// NOLINTNEXTLINE(bugprone-macro-parentheses): parts of a declaration
#define HVDTUNE_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  HVDTUNE_TENSORFLOW_FUNCTIONS(HVDTUNE_DECLARE)
#undef HVDTUNE_DECLARE
};

/// Finds all functions in the library at `path`, which the process must have loaded. Throws
/// Error(kInvalidArgument) with the names of missing functions. Only the first call counts; one
/// thread at a time.
void find_c_interface(const std::string& path);

/// The functions that find_c_interface() has found.
[[nodiscard]] const CInterface& tf();

/// A kernel calls it when it is done, perhaps after it has returned, on any thread.
using Done = std::function<void()>;
/// Moves it out of TensorFlow's argument. TensorFlow's C interface passes the address of a
/// std::function that exists until the kernel returns; find_c_interface() has checked that it is
/// this compiler's std::function.
[[nodiscard]] Done take_done(TF_AsyncOpKernelDoneCallback* callback);

/// Owns a TF_Status, initially kOk.
class TfStatus {
 public:
  TfStatus() : status_(tf().NewStatus()) {}
  ~TfStatus() { tf().DeleteStatus(status_); }
  TfStatus(const TfStatus&) = delete;
  TfStatus& operator=(const TfStatus&) = delete;

  operator TF_Status*() const { return status_; }  // NOLINT: implicit, for calls
  [[nodiscard]] bool ok() const { return tf().GetCode(status_) == kOk; }
  void set(int code, const std::string& text) { tf().SetStatus(status_, code, text.c_str()); }
  /// Throws Error(kInvalidArgument) with the text unless ok().
  void check() const;

 private:
  TF_Status* const status_;
};

}  // namespace hvdtune::faces::tensorflow
