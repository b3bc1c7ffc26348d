#include "faces/xla/call.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "faces/running_engine.h"

namespace hvdtune::faces::xla {
namespace {

constexpr Nanos kLongWait = 3600 * kSecond;

/// A compiled program may outlive a job, and the next job may have other ranks.
void check_place(Engine& engine, const Call& call) {
  const auto [index, members] = engine.place_in_set(call.process_set());
  if (index < 0) return;  // the engine reports why
  if (members == call.number(kCallMembers) && index == call.number(kCallIndex)) return;
  refuse_call(
      "tensor " + std::string(call.name) + ": the program was compiled for rank " +
      std::to_string(call.number(kCallIndex)) + " of " + std::to_string(call.number(kCallMembers)) +
      ", and this is rank " + std::to_string(index) + " of " + std::to_string(members) +
      ", for which its results may differ; after a change of the ranks compile it anew (with JAX: "
      "jax.clear_caches())");
}

/// Waits for an operation. `results`: of its tensors; results that the engine has allocated are
/// copied there.
void finish(Engine& engine, std::int64_t handle, const Call& call, std::span<const Tensor> results,
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
    const Tensor& result = results[first + i];
    if (call.number(kCallEqual) != 0 || output.bytes() != result.bytes()) {
      const std::int64_t rows = call.number(kCallEqual) != 0 ? -1 : result.shape[0];
      throw Error(
          ErrorKind::kMismatch,
          "tensor " + std::string(call.name) + ": the ranks bring " +
              std::to_string(output.shape()[0]) + " rows to this rank, but the program " +
              (rows < 0 ? std::string("was compiled for the same number from every rank")
                        : "was compiled for " + std::to_string(rows)) +
              "; in a compiled function the numbers must be equal (or, with JAX, given as sizes)");
    }
    if (output.bytes() > 0) std::memcpy(result.data, output.data(), output.bytes());
  }
}

TensorMemory memory_of(const Call& call, const Tensor& tensor, const Tensor& result) {
  const bool room = !call.changes_rows() || call.number(kCallEqual) != 0;
  return {tensor.data, room ? result.data : nullptr};
}

TensorOperation describe(const Call& call, std::string_view name, std::span<const Tensor> tensors,
                         std::span<const Tensor> results, std::size_t i) {
  return {.kind = call.kind(),
          .root = static_cast<std::int32_t>(call.number(kCallRoot)),
          .name = name,
          .process_set = call.process_set(),
          .reduce_op = static_cast<ReduceOp>(call.number(kCallReduceOp)),
          .prescale = call.factors[0],
          .postscale = call.factors[1],
          .dtype = tensors[i].dtype,
          .shape = tensors[i].shape,
          .memory = memory_of(call, tensors[i], results[i])};
}

Submission submission_of(const Call& call, std::string_view name, std::span<const Tensor> tensors,
                         std::span<const Tensor> results, std::size_t i) {
  const TensorOperation described = describe(call, name, tensors, results, i);
  return {described.request(), {described.memory}, {call.splits.begin(), call.splits.end()}};
}

/// All tensors as one operation.
void run_group(Engine& engine, const Call& call, std::span<const Tensor> tensors,
               std::span<const Tensor> results) {
  Submission group = submission_of(call, call.name, tensors, results, 0);
  group.request.grouped = true;
  group.request.tensors.reserve(tensors.size());
  group.memory.reserve(tensors.size());
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const std::span<const std::int64_t> shape = tensors[i].shape;
    group.request.tensors.push_back({tensors[i].dtype, {shape.begin(), shape.end()}});
    group.memory.push_back(memory_of(call, tensors[i], results[i]));
  }
  finish(engine, engine.submit_blocking(std::move(group)), call, results, 0);
}

/// Each tensor as a separate operation; submits all before it waits for the first.
void run_each(Engine& engine, const Call& call, std::span<const Tensor> tensors,
              std::span<const Tensor> results) {
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
  // Wait for all, whatever happens: XLA owns their memory again as soon as this returns.
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

}  // namespace

std::size_t Tensor::bytes() const {
  std::size_t bytes = dtype_size(dtype);
  for (const std::int64_t length : shape) bytes *= static_cast<std::size_t>(length);
  return bytes;
}

void refuse_call(const std::string& text) { throw Error(ErrorKind::kInvalidArgument, text); }

void run_call(const Call& call, std::span<const Tensor> tensors, std::span<const Tensor> results) {
  if (call.numbers.size() != kCallNumbers || call.factors.size() != 2) {
    refuse_call("hvdtune's custom call was compiled by another version of hvdtune");
  }
  if (tensors.empty() || tensors.size() != results.size()) {
    refuse_call("hvdtune's custom call takes tensors, and returns as many");
  }
  const std::shared_ptr<Engine> engine = running_engine();
  if (call.changes_rows() || call.number(kCallMembers) != 0) check_place(*engine, call);
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

bool ends_job(ErrorKind kind) {
  return kind != ErrorKind::kInvalidArgument && kind != ErrorKind::kMismatch &&
         kind != ErrorKind::kNotInitialized;
}

std::string text_of(const Error& error) {
  return std::string(ends_job(error.kind()) ? "hvdtune: " : "") + error.what();
}

}  // namespace hvdtune::faces::xla
