#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "observe/stragglers/blame.h"

namespace hvdtune {

/// The ranks of each host. `host_of`: by rank, the number of its host.
std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of);

/// Finds the rank, or the host, that all others wait for, from the times at which ranks announce
/// tensors; costs a few stores per announcement. One thread at a time; times are of one clock.
///
/// What a rank *costs*: if its announcement completes a tensor while another rank is blocked, it
/// costs the time since the last announcement of any other rank (before that, another rank was busy
/// as well), or since its own last operation without some ranks, if that is later (until then it
/// had work that they do not have). Nothing is counted twice, so a rank that is 30 ms late for all
/// tensors of a step costs 30 ms, and one that is 3 ms late at each of ten points where all wait
/// also costs 30 ms. The cost is the time that the step would gain if this rank were as fast as the
/// second slowest.
///
/// If a whole host is slow, each of its ranks costs almost nothing, because its neighbours are as
/// late. What a *host* costs, if there are several: the same, from the last announcement of any
/// rank of another host to that of its *typical* rank, the lower median: more than half of its
/// ranks (of two, both) announce only then or later. The earliest rank would be wrong: a rank with
/// less work than its neighbours would hide a slow host. The latest would be wrong as well: a
/// single late rank would make its host look slow. The time of the last rank beyond the typical one
/// is that rank's cost, not its host's: so the two add up, and a host with one late rank costs
/// nothing. A host with one rank has no cost; only its rank has.
///
/// A host is not named while one of its ranks is named that costs as much or more: then that rank
/// probably delays its neighbours (for example because it takes their CPUs).
///
/// Blame decides which one to name, and when.
class StragglerWatch {
 public:
  /// The ranks that were blocked when a tensor became complete.
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
  /// `rank` has taken part, at `time`, in an operation without some ranks. Earlier times than the
  /// last one are ignored.
  void apart(int rank, Nanos time) {
    std::vector<Nanos>& times = apart_[static_cast<std::size_t>(rank)];
    if (times.size() >= kMostTimes) make_room(times);
    if (times.empty() || time > times.back()) times.push_back(time);
  }
  /// A tensor of all ranks is complete; `rank` was the last to announce it, and `times` are the
  /// ranks' announcements (only with several hosts).
  void complete(int rank, Nanos time, Awaited awaited, const std::vector<Nanos>& times = {}) {
    if (awaited == Awaited::kByNobody) return;
    if (complete_.size() == kMostTimes) settle();
    const bool elsewhere = awaited == Awaited::kElsewhere && across_hosts();
    complete_.push_back({time, rank, elsewhere ? typical_time(rank, times) : 0});
  }
  /// A step ends; returns the notices that are due now.
  Notices end_step(std::uint64_t step, Nanos now);

  /// Called before a rank is named: see Blame::set_excuse.
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
    Nanos typical;  // when the typical rank of its host announced; 0 = not needed
  };

  void make_room(std::vector<Nanos>& times);
  void settle();
  [[nodiscard]] Nanos typical_time(int rank, const std::vector<Nanos>& times);

  std::vector<int> host_of_;
  std::vector<std::vector<int>> ranks_of_;  // by host
  std::vector<std::vector<Nanos>> times_;   // by rank, since the last settle(), and one before
  std::vector<std::vector<Nanos>> apart_;   // the same for operations without some ranks
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
