#include "faces/tensorflow/operation_types.h"

#include <cstdint>
#include <initializer_list>
#include <string>

#include "faces/tensorflow/c_interface.h"

namespace hvdtune::faces::tensorflow {
namespace {

constexpr const char* kElementTypes =
    "{bool, uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}";

class Shape {
 public:
  Shape() : handle_(tf().NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { tf().DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;

  operator TF_ShapeHandle*() const { return handle_; }  // NOLINT: implicit, for calls

 private:
  TF_ShapeHandle* const handle_;
};

/// Every output has its input's shape.
void as_the_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const std::int64_t inputs = tf().ShapeInferenceContextNumInputs(context);
  const Shape shape;
  for (int i = 0; i < inputs && tf().GetCode(status) == kOk; ++i) {
    tf().ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf().GetCode(status) != kOk) return;
    tf().ShapeInferenceContextSetOutput(context, i, shape, status);
  }
}

/// An output has the dimensions of its input except the first, which is unknown.
void set_any_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const Shape input;
  tf().ShapeInferenceContextGetInput(context, index, input, status);
  if (tf().GetCode(status) != kOk) return;
  if (tf().ShapeInferenceContextRankKnown(context, input) == 0) {
    tf().ShapeInferenceContextSetOutput(context, index, input, status);
    return;
  }
  if (tf().ShapeInferenceContextRank(context, input) < 1) {
    tf().SetStatus(status, kInvalidArgument,
                   "the tensor must have at least one dimension: its rows are what is exchanged");
    return;
  }
  const Shape row;
  tf().ShapeInferenceContextSubshape(context, input, 1, INT64_MAX, row, status);
  if (tf().GetCode(status) != kOk) return;
  const Shape rows(tf().ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
  const Shape output;
  tf().ShapeInferenceContextConcatenateShapes(context, rows, row, output, status);
  if (tf().GetCode(status) != kOk) return;
  tf().ShapeInferenceContextSetOutput(context, index, output, status);
}

void with_any_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const std::int64_t inputs = tf().ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < inputs && tf().GetCode(status) == kOk; ++i) set_any_rows(context, i, status);
}

/// Alltoall: the received rows, and the number from each rank.
void of_alltoall(TF_ShapeInferenceContext* context, TF_Status* status) {
  set_any_rows(context, 0, status);
  if (tf().GetCode(status) != kOk) return;
  const Shape counts(
      tf().ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
  tf().ShapeInferenceContextSetOutput(context, 1, counts, status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf().ShapeInferenceContextScalar(context));
  tf().ShapeInferenceContextSetOutput(context, 0, shape, status);
}

void of_nothing(TF_ShapeInferenceContext* /*context*/, TF_Status* /*status*/) {}

struct Interface {
  std::initializer_list<const char*> attributes;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
};

void define(const std::string& type, const Interface& interface, ShapeFunction shapes) {
  TF_OpDefinitionBuilder* const builder = tf().NewOpDefinitionBuilder(type.c_str());
  for (const char* attribute : interface.attributes) {
    tf().OpDefinitionBuilderAddAttr(builder, attribute);
  }
  for (const char* input : interface.inputs) tf().OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : interface.outputs) tf().OpDefinitionBuilderAddOutput(builder, output);
  // TensorFlow must not merge, fold or omit a stateful operation.
  tf().OpDefinitionBuilderSetIsStateful(builder, true);
  tf().OpDefinitionBuilderSetShapeInferenceFunction(builder, shapes);
  const TfStatus status;
  tf().RegisterOpDefinition(builder, status);  // which deletes the builder
  status.check();
}

void define_collective(const std::string& type, const Interface& interface, ShapeFunction shapes) {
  define(type, interface, shapes);
  define(type + "Eager", interface, shapes);
}

}  // namespace

void define_operation_types() {
  static const std::string one_type = std::string("T: ") + kElementTypes;
  static const std::string types = std::string("T: list(") + kElementTypes + ") >= 1";
  constexpr const char* kReduceOp = "reduce_op: int";
  constexpr const char* kPrescale = "prescale_factor: float";
  constexpr const char* kPostscale = "postscale_factor: float";
  constexpr const char* kScope = "ignore_name_scope: bool = false";
  constexpr const char* kSet = "process_set_id: int = 0";
  // In eager mode a kernel does not know its node's name.
  constexpr const char* kName = "tensor_name: string = ''";
  define_collective("HorovodAllreduce",
                    {{one_type.c_str(), kReduceOp, kPrescale, kPostscale, kScope, kSet, kName},
                     {"tensor: T"},
                     {"sum: T"}},
                    as_the_inputs);
  define_collective("HorovodGroupedAllreduce",
                    {{types.c_str(), kReduceOp, kPrescale, kPostscale, kScope, kSet, kName},
                     {"tensors: T"},
                     {"sum: T"}},
                    as_the_inputs);
  define_collective("HorovodAllgather",
                    {{one_type.c_str(), kScope, kSet, kName}, {"tensor: T"}, {"output: T"}},
                    with_any_rows);
  define_collective("HorovodGroupedAllgather",
                    {{types.c_str(), kScope, kSet, kName}, {"tensors: T"}, {"outputs: T"}},
                    with_any_rows);
  define_collective(
      "HorovodBroadcast",
      {{one_type.c_str(), "root_rank: int", kScope, kSet, kName}, {"tensor: T"}, {"output: T"}},
      as_the_inputs);
  define_collective("HorovodAlltoall",
                    {{one_type.c_str(), kScope, kSet, kName},
                     {"tensor: T", "splits: int32"},
                     {"output: T", "received_splits: int32"}},
                    of_alltoall);
  define_collective("HorovodReducescatter",
                    {{one_type.c_str(), kReduceOp, kPrescale, kPostscale, kScope, kSet, kName},
                     {"tensor: T"},
                     {"output: T"}},
                    with_any_rows);
  define_collective("HorovodGroupedReducescatter",
                    {{types.c_str(), kReduceOp, kPrescale, kPostscale, kScope, kSet, kName},
                     {"tensors: T"},
                     {"outputs: T"}},
                    with_any_rows);
  define("HorovodJoin", {{}, {}, {"output: int32"}}, scalar);
  define("HorovodSize", {{kSet}, {}, {"size: int32"}}, scalar);
  define("HorovodProcessSetIncluded", {{kSet}, {}, {"included: int32"}}, scalar);
  define("HorovodLocalSize", {{}, {}, {"local_size: int32"}}, scalar);
  define("HorovodRank", {{}, {}, {"rank: int32"}}, scalar);
  define("HorovodLocalRank", {{}, {}, {"local_rank: int32"}}, scalar);
  define("HorovodEndStep", {{"owner: int"}, {}, {}}, of_nothing);
}

}  // namespace hvdtune::faces::tensorflow
