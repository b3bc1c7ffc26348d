#include "engine/submission/submission.h"

namespace hvdtune {
namespace {

constexpr std::size_t kMaxName = 4096;

/// "3, which has the ranks [0, 2]"
std::string members_text(const ProcessSets& sets, std::uint32_t set) {
  return std::to_string(set) + ", which has the ranks " + wire::ranks_text(sets.ranks(set));
}

}  // namespace

void refuse(const std::string& text) { throw Error(ErrorKind::kInvalidArgument, text); }

void refuse_name_in_flight(const std::string& name) {
  refuse("tensor " + name +
         " was submitted with the same name as another tensor that is still being processed; "
         "names in flight must be different");
}

void check_request(const wire::Request& request, const ProcessSets& sets, int rank, bool joined) {
  if (request.name.empty() || request.name.size() > kMaxName) {
    refuse("the name of a tensor must have 1 to " + std::to_string(kMaxName) +
           " bytes; this one has " + std::to_string(request.name.size()));
  }
  const auto refuse_it = [&request](const std::string& why) {
    refuse("tensor " + request.name + ": " + why);
  };
  const std::uint32_t set = request.process_set;
  if (joined && set == 0) {
    refuse_it("rank " + std::to_string(rank) +
              " has joined; until all ranks have, it can submit nothing to the whole job");
  }
  if (!sets.exists(set)) {
    refuse_it("process set " + std::to_string(set) + " does not exist or has not been registered");
  }
  if (sets.index_of(set, rank) < 0) {
    refuse_it("rank " + std::to_string(rank) + " is not a member of the provided process set " +
              members_text(sets, set));
  }
  if (traits_of(request.kind).rooted && sets.index_of(set, request.root) < 0) {
    refuse_it("invalid root rank " + std::to_string(request.root) + ": not a rank of process set " +
              members_text(sets, set));
  }
  const bool scatters = request.kind == OpKind::kReducescatter;
  if (scatters && request.reduce_op != ReduceOp::kSum && request.reduce_op != ReduceOp::kAverage) {
    throw Error(ErrorKind::kMismatch,
                "tensor " + request.name + ": reducescatter only supports AVERAGE and SUM");
  }
}

void check_fit(const Submission& submission, const ProcessSets& sets) {
  const wire::Request& request = submission.request;
  const auto refuse_it = [&request](const std::string& why) {
    refuse("tensor " + request.name + ": " + why);
  };
  if (submission.memory.size() != request.tensors.size()) {
    refuse_it("every tensor of a request needs its memory");
  }
  if (request.kind != OpKind::kAlltoall) return;
  const auto members = sets.ranks(request.process_set).size();
  if (submission.splits.size() != members) {
    refuse_it("Number of entries in splits (" + std::to_string(submission.splits.size()) +
              ") does not equal the number of processes in the set (" + std::to_string(members) +
              ")");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : submission.splits) {
    if (split < 0) refuse_it("splits must not be negative");
    sum += split;
  }
  const auto& shape = request.tensors.front().shape;
  if (!shape.empty() && sum > shape[0]) {
    refuse_it("Sum of splits entries is greater than the first dimension: " + std::to_string(sum) +
              " > " + std::to_string(shape[0]));
  }
}

std::vector<std::int64_t> equal_splits(const TensorOperation& alltoall, const ProcessSets& sets) {
  if (!sets.exists(alltoall.process_set) || alltoall.shape.empty()) return {};  // refused
  const std::size_t members = sets.ranks(alltoall.process_set).size();
  return std::vector<std::int64_t>(members, alltoall.shape[0] / static_cast<std::int64_t>(members));
}

}  // namespace hvdtune
