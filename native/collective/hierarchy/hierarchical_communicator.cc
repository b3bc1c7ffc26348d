#include "collective/hierarchy/hierarchical_communicator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "collective/kernels/reduction.h"

namespace hvdtune {
namespace {

/// The ranks of the members with these indices.
std::vector<int> ranks_of(const std::vector<std::size_t>& members, const std::vector<int>& ranks) {
  std::vector<int> chosen;
  chosen.reserve(members.size());
  for (const std::size_t member : members) chosen.push_back(ranks[member]);
  return chosen;
}

std::size_t place_of(std::size_t member, const std::vector<std::size_t>& members) {
  const auto place = std::find(members.begin(), members.end(), member);
  HVD_CHECK(place != members.end());
  return static_cast<std::size_t>(place - members.begin());
}

/// A number that distinguishes the connections of a set's column from those of other columns and
/// sets.
int column_number(int set, std::size_t column) {
  static_assert(kMaxProcessSets * (kMaxRanksPerHost + 1) <= INT16_MAX);  // MPI's tags
  return set + kMaxProcessSets * (1 + static_cast<int>(column));
}

bool is_empty(const SegmentList& list) { return list.empty(); }

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(const std::shared_ptr<Arena>& arena, Place place,
                                                   Hierarchy hierarchy, const Connect& between,
                                                   Patience patience,
                                                   std::shared_ptr<HelperPool> helpers)
    : arena_(arena),
      place_(std::move(place)),
      hierarchy_(hierarchy),
      columns_(place_.hosts),
      host_(columns_.host_of(static_cast<std::size_t>(place_.index))),
      local_index_(place_of(static_cast<std::size_t>(place_.index), columns_.on_host(host_))),
      flat_(between(place_.members, place_.index, place_.number)),
      local_(arena, ranks_of(columns_.on_host(host_), place_.members),
             static_cast<int>(local_index_), place_.number, patience, std::move(helpers)) {
  for (const std::size_t column : columns_.columns_of(local_index_, host_)) {
    std::vector<int> members;
    members.reserve(columns_.hosts());
    for (std::size_t host = 0; host < columns_.hosts(); ++host) {
      members.push_back(place_.members[columns_.member(column, host)]);
    }
    own_columns_.push_back(
        {column, between(members, static_cast<int>(host_), column_number(place_.number, column))});
    own_columns_.back().members->show_waiting(arena_->seen_waiting(own_rank()));
  }
}

/// All members begin with their first column, so that no two wait for each other.
template <typename Exchange>
void HierarchicalCommunicator::exchange_between_hosts(Exchange&& exchange) {
  std::atomic<std::int64_t>& seen = arena_->seen_waiting(own_rank());
  seen.store(monotonic_now(), std::memory_order_relaxed);
  for (const Column& column : own_columns_) exchange(column);
  seen.store(0, std::memory_order_relaxed);
}

// ---- allreduce ----------------------------------------------------------------------------------

PhaseTimes HierarchicalCommunicator::allreduce(const AllreduceJob& job) {
  HVD_CHECK(job.in.bytes() == job.out.bytes());
  if (!hierarchy_.allreduce) return flat_->allreduce(job);
  if (job.in.empty()) return {monotonic_now(), monotonic_now()};
  if (!job.out.overlaps()) return allreduce_in_shares(job);
  // A tensor is in the batch twice, in place: a phase would change the input of the next share.
  if (staged_.size() < job.out.bytes()) staged_.resize(job.out.bytes());
  SegmentList whole;
  whole.add(staged_.data(), job.out.bytes());
  const PhaseTimes times =
      allreduce_in_shares({job.in, whole, job.dtype, job.op, job.prescale, job.postscale});
  copy_segments(whole, job.out, job.out.bytes());
  return times;
}

/// Each phase leaves its result where the next one reads it, which is also its final place.
PhaseTimes HierarchicalCommunicator::allreduce_in_shares(const AllreduceJob& job) {
  std::vector<SegmentList> in;
  std::vector<SegmentList> out;
  for (std::size_t local = 0; local < locals(); ++local) {
    in.push_back(share_of(job.in, local));
    out.push_back(share_of(job.out, local));
  }
  const SegmentList& own = out[local_index_];
  PhaseTimes times = local_.reducescatter({in, own, job.dtype, job.op, job.prescale, 1.0});
  exchange_between_hosts([&](const Column& column) {
    const Part part = chunk_part(0, job.out.bytes(), column.number, columns_.count());
    SegmentList share;
    share.add(job.out, part.begin, part.bytes);
    column.members->allreduce({share, share, job.dtype, job.op, 1.0, job.postscale});
  });
  times.unpacking = local_.allgather({own, out}).unpacking;
  return times;
}

/// The data that a member of this host sends between hosts: the shares of its columns, one after
/// the other.
SegmentList HierarchicalCommunicator::share_of(const SegmentList& message,
                                               std::size_t local) const {
  SegmentList share;
  for (const std::size_t column : columns_.columns_of(local, host_)) {
    const Part part = chunk_part(0, message.bytes(), column, columns_.count());
    share.add(message, part.begin, part.bytes);
  }
  return share;
}

// ---- allgather ----------------------------------------------------------------------------------

PhaseTimes HierarchicalCommunicator::allgather(const AllgatherJob& job) {
  if (!hierarchy_.allgather) return flat_->allgather(job);
  if (job.lengths != nullptr) job.lengths->prepare(flat_->exchange(job.lengths->mine));
  HVD_CHECK(job.out.size() == place_.members.size());
  if (std::all_of(job.out.begin(), job.out.end(), is_empty)) {
    return {monotonic_now(), monotonic_now()};
  }
  return allgather_by_columns(job);
}

/// Whether a host's member in a column sends its own data there. A member in several columns does
/// so only in the first of them.
bool HierarchicalCommunicator::brings_data(std::size_t column, std::size_t host) const {
  return column < columns_.on_host(host).size();
}

PhaseTimes HierarchicalCommunicator::allgather_by_columns(const AllgatherJob& job) {
  PhaseTimes times{monotonic_now(), 0};
  const SegmentList nothing;
  exchange_between_hosts([&](const Column& column) {
    std::vector<SegmentList> out(columns_.hosts());
    for (std::size_t host = 0; host < columns_.hosts(); ++host) {
      if (brings_data(column.number, host)) {
        out[host] = job.out[columns_.member(column.number, host)];
      }
    }
    column.members->allgather({brings_data(column.number, host_) ? job.in : nothing, out});
  });
  std::vector<SegmentList> gathered;
  gathered.reserve(locals());
  for (std::size_t local = 0; local < locals(); ++local) {
    gathered.push_back(gathered_by(local, job.out));
  }
  times.unpacking = local_.allgather({gathered[local_index_], gathered}).unpacking;
  return times;
}

/// The part of the result that a member of this host receives from its columns.
SegmentList HierarchicalCommunicator::gathered_by(std::size_t local,
                                                  const std::vector<SegmentList>& out) const {
  SegmentList gathered;
  for (const std::size_t column : columns_.columns_of(local, host_)) {
    for (std::size_t host = 0; host < columns_.hosts(); ++host) {
      if (!brings_data(column, host)) continue;
      const SegmentList& data = out[columns_.member(column, host)];
      gathered.add(data, 0, data.bytes());
    }
  }
  return gathered;
}

// ---- the rest -----------------------------------------------------------------------------------

void HierarchicalCommunicator::tune(const Tuning& tuning) {
  hierarchy_ = tuning.hierarchy.value_or(hierarchy_);
  flat_->tune(tuning);
  local_.tune(tuning);
  for (const Column& column : own_columns_) column.members->tune(tuning);
}

std::optional<HostsFirst> HierarchicalCommunicator::hosts_first() {
  if (!hierarchy_.allreduce) return {};
  for (std::size_t host = 0; host < columns_.hosts(); ++host) {
    if (columns_.on_host(host).size() != columns_.count()) return {};
  }
  return HostsFirst{local_, *own_columns_.front().members};
}

void HierarchicalCommunicator::time_waits(bool timed) {
  flat_->time_waits(timed);
  local_.time_waits(timed);
  for (const Column& column : own_columns_) column.members->time_waits(timed);
}

Nanos HierarchicalCommunicator::waited() const {
  Nanos sum = flat_->waited() + local_.waited();
  for (const Column& column : own_columns_) sum += column.members->waited();
  return sum;
}

void HierarchicalCommunicator::report_absence(Nanos patience, AbsenceReport report) {
  for (const Column& column : own_columns_) {
    column.members->report_absence(patience, [this, number = column.number, patience, report](
                                                 const std::vector<int>& missing, Nanos waited) {
      report_other_hosts(number, missing, waited, patience, report);
    });
  }
  flat_->report_absence(patience, report);
  local_.report_absence(patience,
                        [this, patience, report](const std::vector<int>& missing, Nanos waited) {
                          std::vector<int> ranks;
                          for (const int rank : missing) {
                            if (!waits_for_hosts(rank, patience)) ranks.push_back(rank);
                          }
                          if (!ranks.empty()) report(ranks, waited);
                        });
}

/// False for a rank of this host that has been stopped meanwhile.
bool HierarchicalCommunicator::waits_for_hosts(int rank, Nanos patience) const {
  const Nanos seen = arena_->seen_waiting(rank).load(std::memory_order_relaxed);
  return seen != 0 && monotonic_now() - seen < patience / 2;
}

/// `missing`: ranks of a column. The first member on this host that waits for other hosts reports.
void HierarchicalCommunicator::report_other_hosts(std::size_t column,
                                                  const std::vector<int>& missing, Nanos waited,
                                                  Nanos patience,
                                                  const AbsenceReport& report) const {
  const auto& own_host = columns_.on_host(host_);
  for (std::size_t local = 0; local < local_index_; ++local) {
    if (waits_for_hosts(place_.members[own_host[local]], patience)) return;
  }
  std::vector<int> alone;
  std::vector<int> all;
  for (const int rank : missing) {
    const auto at = std::lower_bound(place_.members.begin(), place_.members.end(), rank);
    const auto member = static_cast<std::size_t>(at - place_.members.begin());
    const auto& neighbours = columns_.on_host(columns_.host_of(member));
    // No other rank there can report it; but in a column that is not its first, it may be waiting
    // for another column.
    if (neighbours.size() == 1 && column == 0) alone.push_back(rank);
    for (const int other : ranks_of(neighbours, place_.members)) all.push_back(other);
  }
  if (!alone.empty()) return report(alone, waited);
  if (waited >= 2 * patience) report(all, waited - patience);
}

const char* HierarchicalCommunicator::activity(OpKind kind) const {
  if (kind == OpKind::kAllreduce && hierarchy_.allreduce) return "HIERARCHICAL_ALLREDUCE";
  if (kind == OpKind::kAllgather && hierarchy_.allgather) return "HIERARCHICAL_ALLGATHER";
  return flat_->activity(kind);
}

CommunicatorFactory make_hierarchical_factory(Hierarchy hierarchy, CommunicatorFactory between) {
  if (!hierarchy.allreduce && !hierarchy.allgather) return between;
  return [hierarchy, between = std::move(between)](
             const CommunicatorSpec& spec) -> std::unique_ptr<Communicator> {
    if (!spec.session.spans_hosts(spec.members)) return between(spec);
    std::vector<int> hosts;
    hosts.reserve(spec.members.size());
    for (const int rank : spec.members) {
      hosts.push_back(spec.session.host_of[static_cast<std::size_t>(rank)]);
    }
    // With one member per host there is nothing to do within hosts.
    if (HostColumns(hosts).count() == 1) return between(spec);
    const auto connect = [&](const std::vector<int>& members, int index, int number) {
      return between({spec.session, members, index, number, spec.only_one, spec.patience});
    };
    std::unique_ptr<HierarchicalCommunicator> communicator;
    // If a column cannot be connected, members of other columns must also fail.
    agree(*make_own_communicator(spec), spec, [&] {
      communicator = std::make_unique<HierarchicalCommunicator>(
          spec.session.arena,
          HierarchicalCommunicator::Place{spec.members, std::move(hosts), spec.index, spec.number},
          hierarchy, connect, spec.patience, spec.helpers);
    });
    communicator->set_window_shared(!spec.only_one);
    return communicator;
  };
}

}  // namespace hvdtune
