#include "engine/submission/direct_data.h"

#include <algorithm>
#include <array>

#include "collective/kernels/copy.h"
#include "collective/kernels/kernels.h"
#include "collective/kernels/reduction.h"
#include "engine/operation/averaging.h"
#include "engine/operation/results.h"
#include "engine/submission/shared_sum.h"

namespace hvdtune {
namespace {

/// Whether some member's data may be on its stage, so that it must know which members have read it.
bool may_be_staged(const Operation& operation) {
  return operation.direct_bytes > kDirectBytes || traits_of(operation.request.kind).rows_may_differ;
}

}  // namespace

DirectData::DirectData(Arena& arena, const ProcessSets& sets, int rank)
    : arena_(arena),
      sets_(sets),
      rank_(rank),
      stage_(arena, sets, stage_for_each(arena)),
      shared_stage_(arena, sets, stage_for_shared()),
      results_(arena, sets, stage_for_results()) {}

bool DirectData::suits(const Operation& operation) {
  const wire::Request& request = operation.request;
  if (request.kind == OpKind::kBarrier) return true;
  if (request.grouped || request.tensors.size() != 1 || !request.on_host()) return false;
  switch (request.kind) {
    case OpKind::kAllreduce:
      return request.reduce_op != ReduceOp::kAdasum;
    case OpKind::kAlltoall:  // equal parts: a rank's result follows from the others' data
      return std::ranges::all_of(operation.splits,
                                 [&](auto split) { return split == operation.splits.front(); });
    case OpKind::kAllgather:
    case OpKind::kBroadcast:
    case OpKind::kReducescatter:
      return true;
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;
  }
  return false;
}

std::size_t DirectData::bytes(const Operation& operation) {
  const wire::Request& request = operation.request;
  if (request.tensors.empty()) return 0;
  const wire::TensorSpec& tensor = request.tensors.front();
  if (request.kind != OpKind::kAlltoall) return static_cast<std::size_t>(tensor.bytes());
  const auto parts = static_cast<std::int64_t>(operation.splits.size());
  return static_cast<std::size_t>(parts * operation.splits.front() * row_bytes(tensor));
}

DirectData::Own DirectData::own_part(const Operation& operation) const {
  const wire::Request& request = operation.request;
  const bool scatters = request.kind == OpKind::kReducescatter && request.prescale == 1.0;
  if (!scatters && request.kind != OpKind::kAlltoall) return {};
  const auto count = static_cast<int>(members(operation).size());
  const int index = sets_.index_of(request.process_set, rank_);
  const wire::TensorSpec& tensor = request.tensors.front();
  const std::int64_t row = row_bytes(tensor);
  if (!scatters) {
    const std::int64_t part = operation.splits.front() * row;
    return {static_cast<std::size_t>(index * part), static_cast<std::size_t>((index + 1) * part)};
  }
  const std::int64_t rows = tensor.shape[0];
  return {static_cast<std::size_t>(rows_before(rows, index, count) * row),
          static_cast<std::size_t>(rows_before(rows, index + 1, count) * row)};
}

bool DirectData::publish(const Operation& operation, std::uint32_t round, CopyKind writing,
                         bool shares) {
  const wire::Request& request = operation.request;
  const std::size_t length = operation.direct_bytes;
  if (may_be_staged(operation)) {
    // Always set it, whatever the earlier rounds were: a count that is far behind would appear to
    // be ahead.
    arena_.staged(operation.slot, rank_).finished.store(round, std::memory_order_release);
  }
  if (traits_of(request.kind).rows_may_differ) {
    arena_.staged(operation.slot, rank_).length[round % 2].store(length, std::memory_order_relaxed);
  }
  if (!publishes(operation)) return true;
  std::byte* mine = nullptr;
  if (length <= kDirectBytes) {
    mine = arena_.direct_data(operation.slot, round, rank_, length);
    writing = CopyKind::kCached;
  } else {
    DirectStage& stage = shares ? shared_stage_ : stage_;
    const auto place = stage.take(operation.slot, round, request.process_set, length);
    if (!place) return false;
    mine = arena_.stage(rank_) + *place;
    arena_.staged(operation.slot, rank_).place[round % 2].store(*place, std::memory_order_relaxed);
    if (request.kind == OpKind::kAllreduce) place_sum(operation, round, shares);
  }
  SegmentList data;
  data.add(const_cast<void*>(operation.memory.front().in), length);
  const DType dtype = request.tensors.front().dtype;
  const Own own = own_part(operation);
  pack(data, 0, own.begin, mine, dtype, request.prescale, writing);
  pack(data, own.end, length - own.end, mine + own.end, dtype, request.prescale, writing);
  order_copies(writing);
  return true;
}

/// Publishes the position of the sum, if this rank is the first member.
void DirectData::place_sum(const Operation& operation, std::uint32_t round, bool shares) {
  if (members(operation).front() != rank_) return;
  std::uint64_t place = StagedTensor::kReducedByEach;
  if (shares) {
    place =
        results_.take(operation.slot, round, operation.request.process_set, operation.direct_bytes)
            .value_or(place);
  }
  arena_.staged(operation.slot, rank_).result[round % 2].store(place, std::memory_order_relaxed);
}

/// False: this rank must reduce everything itself.
bool DirectData::fetch_shared_sum(Operation& operation, CopyKind writing) {
  if (operation.direct_bytes <= kDirectBytes) return false;
  const wire::Request& request = operation.request;
  const std::vector<int>& ranks = members(operation);
  SharedSum sum(arena_, ranks,
                {operation.slot, operation.direct_round, request.tensors.front().dtype,
                 plain_reduction(request.reduce_op),
                 total_postscale(request, static_cast<int>(ranks.size())), operation.direct_bytes});
  if (!sum.fetch(operation.memory.front().out, writing)) return false;
  shared_stage_.give_back(operation.slot, operation.direct_round);
  return true;
}

void DirectData::give_back(const Operation& operation, std::uint32_t round) {
  for (DirectStage* stage : {&stage_, &shared_stage_, &results_}) {
    stage->give_back(operation.slot, round);
  }
}

/// Address where a member has published `bytes` bytes for the operation's round, which is complete.
const std::byte* DirectData::published(const Operation& operation, int rank,
                                       std::size_t bytes) const {
  const std::uint32_t round = operation.direct_round;
  if (bytes <= kDirectBytes) return arena_.direct_data(operation.slot, round, rank, bytes);
  return staged_data(arena_, operation.slot, round, rank);
}

void DirectData::release(const Operation& operation) {
  if (!may_be_staged(operation)) return;
  arena_.staged(operation.slot, rank_)
      .finished.store(operation.direct_round + 1, std::memory_order_release);
}

void DirectData::make_result(Operation& operation, CopyKind writing) {
  const wire::Request& request = operation.request;
  const TensorMemory memory = operation.memory.empty() ? TensorMemory{} : operation.memory.front();
  const std::size_t length = operation.direct_bytes;
  switch (request.kind) {
    case OpKind::kAllreduce:
      if (!fetch_shared_sum(operation, writing)) reduce(operation, 0, length, memory.out);
      return;
    case OpKind::kReducescatter: {
      const auto count = static_cast<int>(members(operation).size());
      const int index = sets_.index_of(request.process_set, rank_);
      const wire::TensorSpec& tensor = request.tensors.front();
      const std::int64_t rows = scattered_rows(tensor.shape[0], index, count);
      const std::int64_t before = rows_before(tensor.shape[0], index, count);
      const std::int64_t row = row_bytes(tensor);
      return reduce(operation, static_cast<std::size_t>(before * row),
                    static_cast<std::size_t>(rows * row), place_rows(operation, 0, rows, true));
    }
    case OpKind::kBroadcast: {
      const bool sends = request.root == rank_;
      const void* from = sends ? memory.in : published(operation, request.root, length);
      if (from != memory.out) copy_bytes(memory.out, from, length, CopyKind::kCached);
      return;
    }
    case OpKind::kAllgather:
      return gather(operation, 1);
    case OpKind::kAlltoall:
      return gather(operation, members(operation).size());
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      return;
  }
}

/// Reduces [begin, begin + bytes) of all members' data, in the order of ranks.
void DirectData::reduce(Operation& operation, std::size_t begin, std::size_t bytes,
                        void* result) const {
  const wire::Request& request = operation.request;
  const std::vector<int>& ranks = members(operation);
  const DType dtype = request.tensors.front().dtype;
  std::array<const void*, kMaxRanksPerHost> sources;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    const bool own = ranks[member] == rank_ && request.prescale == 1.0;
    // A rank does not read its own published data: see ShmCommunicator.
    const auto* all = own ? static_cast<const std::byte*>(operation.memory.front().in)
                          : published(operation, ranks[member], operation.direct_bytes);
    sources[member] = all + begin;
  }
  const auto count = static_cast<int>(ranks.size());
  reduce_kernel(dtype, plain_reduction(request.reduce_op))(
      result, sources.data(), count, bytes / dtype_size(dtype), total_postscale(request, count));
}

/// Collects each member's data for this rank: one of `parts` equal parts of its published data.
void DirectData::gather(Operation& operation, std::size_t parts) {
  const std::vector<int>& ranks = members(operation);
  const auto self = static_cast<std::size_t>(sets_.index_of(operation.request.process_set, rank_));
  const std::size_t part = parts == 1 ? 0 : self;
  const auto row = static_cast<std::size_t>(row_bytes(operation.request.tensors.front()));
  std::array<std::size_t, kMaxRanksPerHost> lengths;
  std::size_t total = 0;
  bool equal = true;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    const StagedTensor& staged = arena_.staged(operation.slot, ranks[member]);
    lengths[member] =
        staged.length[operation.direct_round % 2].load(std::memory_order_relaxed) / parts;
    total += lengths[member];
    equal = equal && lengths[member] == lengths[0];
  }
  std::byte* const result = place_rows(operation, 0, static_cast<std::int64_t>(total / row), equal);
  if (operation.request.kind == OpKind::kAlltoall && !operation.outputs.empty()) {
    for (std::size_t member = 0; member < ranks.size(); ++member) {
      operation.numbers.push_back(static_cast<std::int64_t>(lengths[member] / row));
    }
  }
  std::array<std::size_t, kMaxRanksPerHost> places;
  std::size_t place = 0;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    places[member] = place;
    place += lengths[member];
  }
  // This rank's own part first, which is in cache, then the next members', so that members read
  // different memory at a time.
  for (std::size_t turn = 0; turn < ranks.size(); ++turn) {
    const std::size_t member = (self + turn) % ranks.size();
    const auto* all = turn == 0 ? static_cast<const std::byte*>(operation.memory.front().in)
                                : published(operation, ranks[member], lengths[member] * parts);
    copy_bytes(result + places[member], all + part * lengths[member], lengths[member],
               CopyKind::kCached);
  }
}

}  // namespace hvdtune
