#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/op_kind.h"
#include "engine/engine.h"
#include "engine/submission/submission.h"
#include "faces/tensorflow/c_interface.h"

namespace hvdtune::faces::tensorflow {

/// TensorFlow's code for an error, by which programs, such as Horovod's elastic loop, recognise
/// it.
[[nodiscard]] int code_of(ErrorKind kind);

/// The request of a node of a graph, made whenever it runs; in eager mode, of all calls with the
/// same attributes.
struct Node {
  OpKind kind = OpKind::kAllreduce;
  bool grouped = false;
  std::string type;  ///< of the operation
  std::string name;  ///< on the wire; empty: eager mode, and the user gave none
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t root = 0;
  std::uint32_t process_set = 0;
};

/// One run of a node: turns its tensors into a submission, and the results into its outputs.
class Call {
 public:
  /// `node` and `context` must exist until the kernel is done.
  Call(const Node& node, TF_OpKernelContext* context) : node_(node), context_(context) {}

  /// Takes the inputs; allocates the outputs whose shape is known, in place of inputs if TensorFlow
  /// allows it. Throws Error(kInvalidArgument). Once.
  Submission submission(Engine& engine, const std::string& name);
  /// Gives TensorFlow the results, or the error; afterwards the kernel may say that it is done.
  /// Once.
  void deliver(Operation& operation);
  void fail(const Status& status);

 private:
  struct Delete {
    void operator()(TF_Tensor* tensor) const { tf().DeleteTensor(tensor); }
  };
  using Tensor = std::unique_ptr<TF_Tensor, Delete>;

  Tensor input(int index, const TfStatus& status);
  void add_tensor(int index, const TfStatus& status, Submission& submission);
  std::vector<std::int64_t> splits(Engine& engine, const wire::TensorSpec& spec);
  void set_rows(int index, OwnedBuffer& rows);
  void set_counts(const std::vector<std::int64_t>& counts);

  const Node& node_;
  TF_OpKernelContext* const context_;
  std::vector<Tensor> inputs_;
  std::vector<int> types_;  // TF_DataType, by tensor
};

}  // namespace hvdtune::faces::tensorflow
