#include "observe/status/job_status.h"

#include <algorithm>
#include <charconv>

#include "observe/trace/trace_format.h"

namespace hvdtune {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  // Not printf: with some locales it writes a comma.
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 9)
          .ptr;
  return {text.data(), end};
}

std::string seconds(Nanos time) { return number(static_cast<double>(time) / kSecond); }

std::string quoted(const std::string& text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  return out + '"';
}

std::string number_or_null(int number) { return number < 0 ? "null" : std::to_string(number); }

/// The inside of an object.
std::string lateness_json(const std::vector<Lateness>& all, std::size_t who,
                          const std::vector<Charge>& charges) {
  const Lateness& one = all[who];
  return "\"late_s\":" + seconds(one.late) + ",\"share\":" + number(one.share) +
         ",\"last_share\":" + number(one.last_share) +
         ",\"chance\":" + number(caused_by_chance(charges, static_cast<int>(who), all.size()));
}

/// Empty for a job on one host.
std::string hosts_json(const std::vector<std::vector<int>>& ranks_of,
                       const std::vector<Lateness>& hosts, const std::vector<Charge>& charges) {
  if (hosts.size() < 2) return "[]";
  std::string out = "[";
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    out += host > 0 ? ",{\"ranks\":[" : "{\"ranks\":[";
    for (const int rank : ranks_of[host]) {
      if (out.back() != '[') out += ',';
      out += std::to_string(rank);
    }
    out += "]," + lateness_json(hosts, host, charges) + "}";
  }
  return out + "]";
}

}  // namespace

void JobStatus::scheduled(std::uint64_t batches, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  batches_ = batches;
  bytes_ = bytes;
}

void JobStatus::step(const StepRecord& step, Nanos blocked, const StragglerWatch& stragglers) {
  const std::lock_guard lock(mutex_);
  last_ = step;
  ranks_ = stragglers.ranks().lately();
  rank_charges_ = stragglers.ranks().charges();
  late_rank_ = stragglers.ranks().named();
  if (stragglers.across_hosts()) {
    hosts_ = stragglers.hosts().lately();
    host_charges_ = stragglers.hosts().charges();
  }
  late_host_ = stragglers.hosts().named();
  if (steps_ == 0) first_end_ = step.end - step.duration;
  if (steps_ > 0) one_time_.step(step.duration, durations());
  marks_[steps_ % kMarks] = {step.end, blocked};
  ++steps_;
}

/// The durations of the steps between the marks, the oldest first.
std::vector<Nanos> JobStatus::durations() const {
  std::vector<Nanos> found;
  for (std::size_t back = std::min<std::size_t>(steps_, kMarks); back > 1; --back) {
    found.push_back(marks_[(steps_ + 1 - back) % kMarks].end -
                    marks_[(steps_ - back) % kMarks].end);
  }
  return found;
}

JobStatus::Lately JobStatus::lately() const {
  Lately found;
  const Nanos limit = one_time_.limit(durations());
  for (std::size_t back = std::min<std::size_t>(steps_, kMarks); back > 1; --back) {
    const Mark& begin = marks_[(steps_ - back) % kMarks];
    const Mark& end = marks_[(steps_ + 1 - back) % kMarks];
    if (end.end - begin.end > limit) {
      found.left_out += end.end - begin.end;
      continue;
    }
    ++found.steps;
    found.time += end.end - begin.end;
    found.blocked += end.blocked - begin.blocked;
  }
  return found;
}

void JobStatus::stalled(StallCause cause, const std::string& report, std::size_t tensors,
                        Nanos now) {
  const std::lock_guard lock(mutex_);
  ++stall_reports_;
  Stall& stall = stalls_[static_cast<std::size_t>(cause)];
  if (stall.tensors == 0) stall.since = now;
  stall.tensors = tensors;
  stall.report = report;
}

void JobStatus::stall_over(StallCause cause) {
  const std::lock_guard lock(mutex_);
  stalls_[static_cast<std::size_t>(cause)] = {};
}

void JobStatus::note(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text.empty()) {
    notes_.erase(key);
  } else {
    notes_[key] = text;
  }
}

std::string JobStatus::json(Nanos now) const {
  const std::lock_guard lock(mutex_);
  std::string step_time = "null";
  std::string exposed = "null";
  const Lately steps = lately();
  if (steps.steps > 0) {
    const auto time = static_cast<double>(std::max<Nanos>(steps.time, 1));
    step_time = number(time / static_cast<double>(kSecond) / static_cast<double>(steps.steps));
    exposed = number(std::min(1.0, static_cast<double>(steps.blocked) / time));
  }
  const std::uint64_t executed = executed_.load();  // read before the numbers that include it
  const std::uint64_t in_batches = std::max(scheduled_.load(), executed) - executed;
  const std::size_t incomplete = incomplete_.load();
  const std::size_t ready = ready_.load();
  std::size_t stalled_tensors = 0;
  Nanos stalled_since = now;
  std::string reports;
  for (const Stall& stall : stalls_) {
    if (stall.tensors == 0) continue;
    stalled_tensors += stall.tensors;
    stalled_since = std::min(stalled_since, stall.since);
    reports += (reports.empty() ? "" : "\n") + stall.report;
  }
  std::string out =
      "\"uptime_s\":" + seconds(now - began_) + ",\"steps\":" + std::to_string(steps_) +
      ",\"step_s\":" + step_time +
      ",\"start_s\":" + (steps_ > 0 ? seconds(std::max<Nanos>(first_end_ - began_, 0)) : "null") +
      ",\"one_time_s\":" + seconds(steps.left_out) +
      ",\"last_step_ago_s\":" + (steps_ > 0 ? seconds(now - last_.end) : "null") +
      ",\"step_bytes\":" + std::to_string(last_.bytes) +
      ",\"step_tensors\":" + std::to_string(last_.tensors) +
      ",\"step_batches\":" + std::to_string(last_.batches) + ",\"exposed_share\":" + exposed +
      ",\"queue\":" + std::to_string(incomplete + ready + in_batches) +
      ",\"queue_for_ranks\":" + std::to_string(incomplete) +
      ",\"batches\":" + std::to_string(batches_) + ",\"bytes\":" + std::to_string(bytes_) +
      ",\"straggler\":" + number_or_null(late_rank_) +
      ",\"straggler_host\":" + number_or_null(late_host_) +
      ",\"stall_reports\":" + std::to_string(stall_reports_) +
      ",\"stalled_tensors\":" + std::to_string(stalled_tensors);
  if (stalled_tensors > 0) {
    out += ",\"stalled_for_s\":" + seconds(now - stalled_since) + ",\"stall\":" + quoted(reports);
  }
  out += ",\"lateness\":[";
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    out += (rank > 0 ? ",{" : "{") + lateness_json(ranks_, rank, rank_charges_) + "}";
  }
  out += "],\"hosts\":" + hosts_json(ranks_of_, hosts_, host_charges_) + ",\"notes\":{";
  for (const auto& [key, text] : notes_) {
    if (out.back() != '{') out += ',';
    out += quoted(key) + ":" + quoted(text);
  }
  return out + "}";
}

}  // namespace hvdtune
