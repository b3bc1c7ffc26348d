#include "engine/execution/executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/memory/huge_pages.h"
#include "collective/adasum.h"
#include "engine/operation/averaging.h"
#include "engine/operation/registration.h"
#include "engine/operation/results.h"
#include "engine/operation/timeline_rows.h"

namespace hvdtune {
namespace {

/// Tensors of one dtype within a batch, in order. A group may mix dtypes; a reduction cannot.
struct TensorRef {
  Operation* operation;
  std::size_t index;

  [[nodiscard]] const wire::TensorSpec& spec() const { return operation->request.tensors[index]; }
  [[nodiscard]] void* in() const { return const_cast<void*>(operation->memory[index].in); }
  [[nodiscard]] void* out() const { return operation->memory[index].out; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(spec().bytes()); }
  /// The result's address from place_rows(), for results that are always as expected.
  [[nodiscard]] void* placed() const {
    return out() != nullptr ? out() : operation->outputs[index].data();
  }
  /// If not in place, the result's memory is most likely new.
  void expect_new_output() const {
    if (in() != out()) prefer_huge_pages(out(), bytes());
  }
};

std::vector<std::vector<TensorRef>> by_dtype(const std::vector<OperationPtr>& batch) {
  std::vector<std::vector<TensorRef>> classes;
  for (const OperationPtr& operation : batch) {
    for (std::size_t i = 0; i < operation->request.tensors.size(); ++i) {
      const TensorRef tensor{operation.get(), i};
      const auto same = std::find_if(classes.begin(), classes.end(), [&](const auto& members) {
        return members.front().spec().dtype == tensor.spec().dtype;
      });
      if (same != classes.end()) {
        same->push_back(tensor);
      } else {
        classes.push_back({tensor});
      }
    }
  }
  return classes;
}

PhaseTimes joined(const PhaseTimes& first, const PhaseTimes& second) {
  return {first.packed != 0 ? first.packed : second.packed, second.unpacking};
}

/// See BatchCpu.
bool is_short(const std::vector<OperationPtr>& batch) {
  if (batch.size() > BatchCpu::kFewOperations) return false;
  std::int64_t bytes = 0;
  for (const OperationPtr& operation : batch) bytes += operation->request.bytes();
  return BatchCpu::is_short(batch.size(), bytes);
}

}  // namespace

Executor::Executor(const ProcessSets& sets, int rank, Timeline& timeline, HelperPool& helpers)
    : sets_(sets), rank_(rank), timeline_(timeline), helpers_(helpers) {}

void Executor::connect(std::vector<std::unique_ptr<Communicator>> communicators) {
  communicators_ = std::move(communicators);
  tune(tuning_);
}

void Executor::add_set(std::uint32_t set, std::unique_ptr<Communicator> communicator) {
  if (communicators_.size() == 1) communicators_.front()->share_buffers();
  if (communicators_.size() <= set) communicators_.resize(set + 1);
  if (communicator) communicator->tune(tuning_);
  communicators_[set] = std::move(communicator);
}

void Executor::add_registered_set(std::uint32_t set, std::unique_ptr<ShmRegistered> registered) {
  if (registered_.size() <= set) registered_.resize(set + 1);
  if (registered) registered->tune(tuning_);
  registered_[set] = std::move(registered);
}

void Executor::remove_set(std::uint32_t set) {
  communicators_[set].reset();
  if (set < registered_.size()) registered_[set].reset();
}

void Executor::tune(const Tuning& tuning) {
  tuning_ = tuning;
  for (const auto& communicator : communicators_) {
    if (communicator) communicator->tune(tuning);
  }
  for (const auto& registered : registered_) {
    if (registered) registered->tune(tuning);
  }
}

void Executor::run(const std::vector<OperationPtr>& batch, std::uint64_t serial, bool registered,
                   bool timed) {
  const wire::Request& head = batch.front()->request;
  communicator_ = communicators_[head.process_set].get();
  HVD_CHECK(communicator_ != nullptr);
  running_ = &batch;
  // Discard the helpers' time for batches that were not timed.
  if (!std::exchange(timing_, timed) && timed) helpers_.cpu_since_asked();
  trace_start(batch);
  try {
    if (timed) {
      run_timed(batch, registered);
    } else if (!head.on_host()) {
      run_staged(batch);
    } else {
      run_as_kind(batch, registered);
    }
  } catch (const Error& error) {
    for (const OperationPtr& operation : batch) operation->status = error.status();
    trace_end(batch, serial, false);
    running_ = nullptr;
    throw;
  }
  trace_end(batch, serial, true);
  running_ = nullptr;
}

/// The data plane uses host memory.
void Executor::run_staged(const std::vector<OperationPtr>& batch) {
  Staging::Batch staged(*staging_, batch);
  trace_activity("MEMCPY_IN_HOST_BUFFER");
  run_as_kind(batch, false);
  begin_ = monotonic_now();
  staged.copy_out();
  trace_activity("MEMCPY_OUT_HOST_BUFFER");
}

void Executor::run_timed(const std::vector<OperationPtr>& batch, bool registered) {
  times_ = {};
  times_.begin = monotonic_now();
  const auto now = [] { return thread_cpu_now(); };
  cpu_.begin(is_short(batch), now);
  const std::uint32_t set = batch.front()->request.process_set;
  if (registered) {
    registered_[set]->time_waits(true);
    run_as_kind(batch, registered);
    times_.waited = registered_[set]->waited();
    registered_[set]->time_waits(false);
  } else {
    communicator_->time_waits(true);
    if (batch.front()->request.on_host()) {
      run_as_kind(batch, registered);
    } else {
      run_staged(batch);
    }
    times_.waited = communicator_->waited();
    communicator_->time_waits(false);
  }
  times_.cpu = cpu_.end(now) + helpers_.cpu_since_asked();
}

void Executor::run_as_kind(const std::vector<OperationPtr>& batch, bool registered) {
  switch (batch.front()->request.kind) {
    case OpKind::kAllreduce:
      if (registered) {
        allreduce_registered(batch);
      } else {
        allreduce(batch);
      }
      break;
    case OpKind::kAllgather:
      allgather(batch);
      break;
    case OpKind::kBroadcast:
      broadcast(*batch.front());
      break;
    case OpKind::kAlltoall:
      alltoall(*batch.front());
      break;
    case OpKind::kReducescatter:
      reducescatter(batch);
      break;
    case OpKind::kBarrier:
      communicator_->barrier();
      break;
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      HVD_CHECK(false);  // scheduled by entries of their own
  }
}

void Executor::allreduce(const std::vector<OperationPtr>& batch) {
  const wire::Request& head = batch.front()->request;
  PhaseTimes times;
  for (const auto& tensors : by_dtype(batch)) {
    SegmentList in;
    SegmentList out;
    for (const TensorRef& tensor : tensors) {
      tensor.expect_new_output();
      in.add(tensor.in(), tensor.bytes());
      out.add(tensor.out(), tensor.bytes());
    }
    if (head.reduce_op == ReduceOp::kAdasum) {
      std::vector<std::size_t> elements;
      for (const TensorRef& tensor : tensors) {
        elements.push_back(static_cast<std::size_t>(tensor.spec().elements()));
      }
      times = joined(times, adasum(*communicator_, {in, out, elements, tensors.front().spec().dtype,
                                                    head.prescale, head.postscale}));
      continue;
    }
    times = joined(times, communicator_->allreduce({in, out, tensors.front().spec().dtype,
                                                    plain_reduction(head.reduce_op), head.prescale,
                                                    total_postscale(head, communicator_->size())}));
  }
  trace_phases(times);
}

void Executor::allreduce_registered(const std::vector<OperationPtr>& batch) {
  const wire::Request& head = batch.front()->request;
  ShmRegistered& registered = *registered_[head.process_set];
  for (const auto& tensors : by_dtype(batch)) {
    std::vector<RegisteredTensor> places;
    for (const TensorRef& tensor : tensors) {
      add_registered(*tensor.operation, tensor.index, places);
    }
    registered.allreduce({places, tensors.front().spec().dtype, plain_reduction(head.reduce_op),
                          head.prescale, total_postscale(head, communicator_->size())});
  }
  trace_exchange();
}

void Executor::allgather(const std::vector<OperationPtr>& batch) {
  // The number of rows of each member, tensor by tensor, is known when its first data arrives.
  std::vector<TensorRef> tensors;
  for (const OperationPtr& operation : batch) {
    for (std::size_t i = 0; i < operation->request.tensors.size(); ++i) {
      tensors.push_back({operation.get(), i});
    }
  }
  std::vector<std::int64_t> rows;
  for (const TensorRef& tensor : tensors) rows.push_back(tensor.spec().shape[0]);
  const auto members = static_cast<std::size_t>(communicator_->size());

  SegmentList in;
  for (const TensorRef& tensor : tensors) in.add(tensor.in(), tensor.bytes());
  std::vector<SegmentList> out(members);
  const auto prepare = [&](const std::vector<std::int64_t>& all_rows) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::int64_t total = 0;
      bool equal = true;  // every rank must know that the numbers differ, even if the total fits
      for (std::size_t m = 0; m < members; ++m) {
        total += all_rows[m * tensors.size() + t];
        equal = equal && all_rows[m * tensors.size() + t] == rows[t];
      }
      std::byte* place = place_rows(*tensors[t].operation, tensors[t].index, total, equal);
      for (std::size_t m = 0; m < members; ++m) {
        const auto bytes = static_cast<std::size_t>(all_rows[m * tensors.size() + t] *
                                                    row_bytes(tensors[t].spec()));
        out[m].add(place, bytes);
        place += bytes;
      }
    }
    return std::size_t{0};
  };
  const Lengths lengths{rows, prepare};
  trace_phases(communicator_->allgather({in, out, &lengths}));
}

void Executor::broadcast(Operation& operation) {
  const wire::Request& request = operation.request;
  SegmentList in;
  SegmentList out;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorRef tensor{&operation, i};
    tensor.expect_new_output();
    in.add(tensor.in(), tensor.bytes());
    out.add(tensor.out(), tensor.bytes());
  }
  const int root = sets_.index_of(request.process_set, request.root);
  trace_phases(communicator_->broadcast({root, in, out}));
}

void Executor::alltoall(Operation& operation) {
  const wire::TensorSpec& spec = operation.request.tensors.front();
  const auto members = static_cast<std::size_t>(communicator_->size());
  const auto self = static_cast<std::size_t>(communicator_->index());
  const auto bytes_of = [&](std::int64_t rows) {
    return static_cast<std::size_t>(rows * row_bytes(spec));
  };
  std::vector<SegmentList> in(members);
  auto* from = static_cast<std::byte*>(const_cast<void*>(operation.memory.front().in));
  for (std::size_t m = 0; m < members; ++m) {
    in[m].add(from, bytes_of(operation.splits[m]));
    from += bytes_of(operation.splits[m]);
  }
  std::vector<SegmentList> out(members);
  const auto prepare = [&](const std::vector<std::int64_t>& splits) {
    std::int64_t received = 0;
    for (std::size_t m = 0; m < members; ++m) {
      operation.numbers.push_back(splits[m * members + self]);
      received += operation.numbers.back();
    }
    const bool equal = std::ranges::all_of(splits, [&](auto s) { return s == splits.front(); });
    std::byte* to = place_rows(operation, 0, received, equal);
    for (std::size_t m = 0; m < members; ++m) {
      out[m].add(to, bytes_of(operation.numbers[m]));
      to += bytes_of(operation.numbers[m]);
    }
    if (operation.outputs.empty()) operation.numbers.clear();  // all as the submitter's
    return bytes_of(*std::max_element(splits.begin(), splits.end()));
  };
  const Lengths lengths{operation.splits, prepare};
  trace_phases(communicator_->alltoall({in, out, 0, &lengths}));
}

void Executor::reducescatter(const std::vector<OperationPtr>& batch) {
  const wire::Request& head = batch.front()->request;
  const int members = communicator_->size();
  const auto rows_of = [members](const TensorRef& tensor, int member) {
    return scattered_rows(tensor.spec().shape[0], member, members);
  };
  for (const OperationPtr& operation : batch) {
    for (std::size_t i = 0; i < operation->request.tensors.size(); ++i) {
      place_rows(*operation, i, rows_of({operation.get(), i}, communicator_->index()), true);
    }
  }
  PhaseTimes times;
  for (const auto& tensors : by_dtype(batch)) {
    std::vector<SegmentList> in(static_cast<std::size_t>(members));
    SegmentList out;
    for (const TensorRef& tensor : tensors) {
      auto* place = static_cast<std::byte*>(tensor.in());
      for (int m = 0; m < members; ++m) {
        const auto bytes = static_cast<std::size_t>(rows_of(tensor, m) * row_bytes(tensor.spec()));
        in[static_cast<std::size_t>(m)].add(place, bytes);
        if (m == communicator_->index()) out.add(tensor.placed(), bytes);
        place += bytes;
      }
    }
    times =
        joined(times, communicator_->reducescatter({in, out, tensors.front().spec().dtype,
                                                    plain_reduction(head.reduce_op), head.prescale,
                                                    total_postscale(head, members)}));
  }
  trace_phases(times);
}

// ---- timeline -----------------------------------------------------------------------------------

void Executor::trace_start(const std::vector<OperationPtr>& batch) {
  rows_.clear();
  if (!timeline_.active()) return;
  begin_ = monotonic_now();
  for (const OperationPtr& operation : batch) {
    const wire::Request& request = operation->request;
    for (std::size_t i = 0; i < std::max<std::size_t>(request.tensors.size(), 1); ++i) {
      rows_.push_back(timeline_row(request, i));
      timeline_.op_start(rows_.back(), wire::operation_label(request), begin_);
    }
  }
  kind_ = batch.front()->request.kind;
}

void Executor::trace_phases(const PhaseTimes& times) {
  times_.phases = times;
  if (rows_.empty()) return;
  // The timeline shows a batch's phases for each of its tensors.
  const Nanos packed = std::max(times.packed, begin_);
  const Nanos unpacking = std::max(times.unpacking, packed);
  const Nanos end = std::max(monotonic_now(), unpacking);
  for (const std::string& row : rows_) {
    timeline_.activity_start(row, "MEMCPY_IN_FUSION_BUFFER", begin_);
    timeline_.activity_end(row, packed);
    timeline_.activity_start(row, communicator_->activity(kind_), packed);
    timeline_.activity_end(row, unpacking);
    timeline_.activity_start(row, "MEMCPY_OUT_FUSION_BUFFER", unpacking);
    timeline_.activity_end(row, end);
  }
}

/// Nothing is packed or unpacked.
void Executor::trace_exchange() { trace_activity(communicator_->activity(kind_)); }

/// Records the activity since begin_, and sets begin_ to now.
void Executor::trace_activity(const char* label) {
  if (rows_.empty()) return;
  const Nanos end = monotonic_now();
  for (const std::string& row : rows_) {
    timeline_.activity_start(row, label, begin_);
    timeline_.activity_end(row, end);
  }
  begin_ = end;
}

void Executor::trace_end(const std::vector<OperationPtr>& batch, std::uint64_t serial, bool ok) {
  if (rows_.empty()) return;
  const Nanos now = monotonic_now();
  std::size_t row = 0;
  for (const OperationPtr& operation : batch) {
    const wire::Request& request = operation->request;
    if (request.tensors.empty()) {
      timeline_.op_end(rows_[row++], now, DType::kUint8, "", 0, serial, ok);
      continue;
    }
    for (const wire::TensorSpec& spec : request.tensors) {
      timeline_.op_end(rows_[row++], now, spec.dtype, wire::shape_text(spec.shape), spec.bytes(),
                       serial, ok);
    }
  }
}

}  // namespace hvdtune
