#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "observe/stragglers/blame.h"

namespace hvdtune {

/// By host: its ranks. `host_of`: by rank, the number of its host.
std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of);

/// Finds the rank, or the host, that everybody waits for, from the times at which ranks announce
/// tensors; costs a few stores an announcement. One thread at a time; times are of one clock.
///
/// What a rank *costs*: when a tensor gets complete by its announcement while another rank is
/// blocked, the time since any other rank has announced anything, since before that another was
/// busy as well; and since it has done anything itself in which not all ranks have a part: until
/// then it had work that they do not have. Nothing is counted twice, so a rank that is late for all
/// tensors of a step by 30 ms costs 30 ms, and one that is late by 3 ms at each of ten points where
/// all wait costs 30 ms, too. It is what the step would gain if this rank were as fast as the
/// second slowest.
///
/// Of a host that is slow as a whole, each rank costs next to nothing: its neighbours are as late.
/// What a *host* costs, where there are several: the same, from the last announcement of any rank
/// of another host to that of its *typical* rank, the lower median: more than half of its ranks,
/// and of two both, are there only then or later. The earliest rank would not do: one that has less
/// to do than its neighbours would hide a slow host. The latest would not do either: a single late
/// rank would make its host look slow. What the last rank takes beyond the typical one is its own
/// cost, and not its host's: so the two add up, and a host with one late rank costs nothing. A host
/// with one rank has no cost of its own: it is that rank.
///
/// A host is not named while one of its ranks is that costs as much or more: then what keeps its
/// neighbours is likely to be that rank (it takes their CPUs, say).
///
/// Whom to name, and when: see Blame.
class StragglerWatch {
 public:
  /// Who was blocked when a tensor got complete.
  enum class Awaited {
    kByNobody,
    kOnItsHost,  ///< only other ranks of the last one's host
    kElsewhere,
  };
  /// At most one of each.
  struct Notices {
    std::optional<StragglerNotice> rank;
    std::optional<StragglerNotice> host;
  };

  /// `host_of`: by rank, the number of its host, from 0 on.
  StragglerWatch(const StragglerOptions& options, std::vector<int> host_of);
  StragglerWatch(const StragglerWatch&) = delete;
  StragglerWatch& operator=(const StragglerWatch&) = delete;

  /// `rank` has announced a tensor. A rank's times never go backwards.
  void announced(int rank, Nanos time) {
    std::vector<Nanos>& times = times_[static_cast<std::size_t>(rank)];
    if (times.size() >= kMostTimes) make_room(times);
    times.push_back(time);
  }
  /// `rank` has taken part, at `time`, in what not all ranks take part in. A time before the last
  /// one says nothing new.
  void apart(int rank, Nanos time) {
    std::vector<Nanos>& times = apart_[static_cast<std::size_t>(rank)];
    if (times.size() >= kMostTimes) make_room(times);
    if (times.empty() || time > times.back()) times.push_back(time);
  }
  /// A tensor of all ranks is complete; `rank` was the last to announce it, and `times` are those
  /// at which each did; of several hosts only.
  void complete(int rank, Nanos time, Awaited awaited, const std::vector<Nanos>& times = {}) {
    if (awaited == Awaited::kByNobody) return;
    if (complete_.size() == kMostTimes) settle();
    const bool elsewhere = awaited == Awaited::kElsewhere && across_hosts();
    complete_.push_back({time, rank, elsewhere ? typical_time(rank, times) : 0});
  }
  /// A step ends: the notices that are due now.
  Notices end_step(std::uint64_t step, Nanos now);

  /// Asked before a rank is named: see Blame::set_excuse.
  void set_excuse(std::function<bool(int rank, Nanos late)> excuse) {
    rank_blame_.set_excuse(std::move(excuse));
  }

  [[nodiscard]] bool across_hosts() const { return ranks_of_.size() > 1; }
  [[nodiscard]] const std::vector<int>& ranks_of(int host) const {
    return ranks_of_[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] const Blame& ranks() const { return rank_blame_; }
  [[nodiscard]] const Blame& hosts() const { return host_blame_; }

 private:
  static constexpr std::size_t kMostTimes = 8192;
  struct Complete {
    Nanos time;
    int rank;
    Nanos typical;  // when the typical rank of its host was there; 0 = of no interest
  };

  void make_room(std::vector<Nanos>& times);
  void settle();
  [[nodiscard]] Nanos typical_time(int rank, const std::vector<Nanos>& times);

  std::vector<int> host_of_;
  std::vector<std::vector<int>> ranks_of_;  // by host
  std::vector<std::vector<Nanos>> times_;   // by rank, since the last settle(), and one before
  std::vector<std::vector<Nanos>> apart_;   // the same of what not all ranks take part in
  std::vector<Complete> complete_;
  std::vector<Nanos> rank_cost_;  // by rank, of the current step
  std::vector<Nanos> host_cost_;  // by host, the same
  std::vector<Nanos> sorted_;     // kept for its memory
  Nanos counted_until_ = 0;
  Nanos last_end_ = 0;
  Blame rank_blame_;
  Blame host_blame_;
};

/// The sentence for the log. `who`: "rank 3 (host b, pid 4711)", `others`: "the other ranks".
std::string straggler_text(const StragglerNotice& notice, const std::string& who,
                           const std::string& others);

}  // namespace hvdtune
