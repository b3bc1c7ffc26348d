// Who takes part, on every rank: joining, and process sets that come and go. The coordinator's half
// is membership.cc.
#include <algorithm>

#include "engine/engine.h"

namespace hvdtune {
namespace {

// What all ranks wait for has the same name on all of them. Additions and removals share one: ranks
// that bring them in different orders disagree, instead of waiting for each other.
constexpr const char* kJoinName = "join.noname";
constexpr const char* kChangeName = "process_set.change";

}  // namespace

std::int64_t Engine::submit_change(OpKind kind, const char* name, std::vector<std::int32_t> ranks) {
  Submission submission;
  submission.request.kind = kind;
  submission.request.name = name;
  submission.request.cacheable = false;
  submission.request.ranks = std::move(ranks);
  return submit(std::move(submission));
}

std::int64_t Engine::join(int device) {
  if (device >= 0 && gpus_.any()) gpus_.use(device);
  return submit_change(OpKind::kJoin, kJoinName, {});
}

std::int64_t Engine::add_process_set(std::vector<std::int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return submit_change(OpKind::kAddProcessSet, kChangeName, std::move(ranks));
}

std::int64_t Engine::remove_process_set(std::uint32_t set) {
  return submit_change(OpKind::kRemoveProcessSet, kChangeName, {static_cast<std::int32_t>(set)});
}

std::vector<int> Engine::process_set_ranks(std::uint32_t set) {
  const std::lock_guard lock(table_mutex_);
  return sets_.exists(set) ? sets_.ranks(set) : std::vector<int>{};
}

std::pair<int, int> Engine::place_in_set(std::uint32_t set) {
  const std::lock_guard lock(table_mutex_);
  if (!sets_.exists(set)) return {-1, 0};
  return {sets_.index_of(set, rank_), static_cast<int>(sets_.ranks(set).size())};
}

// ---- at their place in the schedule -------------------------------------------------------------

void Engine::add_set(const wire::Schedule& schedule) {
  const std::uint32_t set = schedule.process_set;
  {
    const std::lock_guard lock(table_mutex_);
    sets_.add(set, {schedule.ranks.begin(), schedule.ranks.end()});
  }
  executor_.add_set(set, make_communicator(set));
  executor_.add_registered_set(set, make_registered(set));
  finish_change(schedule, set);
}

void Engine::remove_set(const wire::Schedule& schedule) {
  const std::uint32_t set = schedule.process_set;
  finish_all_launched();
  if (device_executor_) device_executor_->remove_set(set);
  executor_.remove_set(set);
  {
    const std::lock_guard lock(table_mutex_);
    sets_.remove(set);
    for (const OperationPtr& operation : table_.take_set(set)) {
      operation->status = {ErrorKind::kAborted,
                           "Process set has been removed: set " + std::to_string(set) +
                               " went while " + operation->request.name + " was waiting in it."};
      operation->done.store(true, std::memory_order_release);
    }
  }
  finish_change(schedule, set);
}

void Engine::end_join(const wire::Schedule& schedule) {
  {
    const std::lock_guard lock(table_mutex_);
    joined_ = false;
  }
  finish_change(schedule, schedule.rank);
}

void Engine::finish_change(const wire::Schedule& schedule, std::int64_t number) {
  const std::lock_guard lock(table_mutex_);
  const OperationPtr operation = table_.find(0, schedule.entries.front());
  if (!operation) return;
  operation->numbers = {number};
  table_.finish(operation, true);
  operation->done.store(true, std::memory_order_release);
}

}  // namespace hvdtune
