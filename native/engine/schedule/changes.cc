// Changes that every rank makes at one place in the schedule: of settings, and of process sets. The
// coordinator's part is coordination/membership.cc.
#include "engine/schedule/schedule_reader.h"

namespace hvdtune {

Tuning ScheduleReader::tuning_of(const wire::RuntimeSettings& settings) const {
  return {settings.chunk_size, settings.one_shot_limit, options_.writing,
          Hierarchy{settings.hierarchical_allreduce, settings.hierarchical_allgather}};
}

void ScheduleReader::connect() {
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::uint32_t set = 0; set < submissions_.sets().numbers(); ++set) {
    communicators.push_back(make_communicator(set));
  }
  executor_.connect(std::move(communicators));
}

/// Reports members that keep this one waiting in the middle of an operation.
template <typename Waiting>
void ScheduleReader::report_absence(Waiting& waiting) {
  if (reports_.limits().patience() == 0) return;
  waiting.report_absence(reports_.limits().patience(),
                         [this](const std::vector<int>& ranks, Nanos waited) {
                           reports_.absence(executor_.running(), ranks, waited);
                         });
}

/// Null on a rank that is not in the set.
std::unique_ptr<Communicator> ScheduleReader::make_communicator(std::uint32_t set) {
  const ProcessSets& sets = submissions_.sets();
  const int index = sets.index_of(set, job_.rank);
  if (index < 0) return nullptr;
  auto communicator =
      options_.data_plane({job_.session, sets.ranks(set), index, static_cast<int>(set),
                           sets.numbers() == 1, job_.patience, helpers_});
  report_absence(*communicator);
  return communicator;
}

/// Null on a rank that is not in the set.
std::unique_ptr<ShmRegistered> ScheduleReader::make_registered(std::uint32_t set) {
  const int index = submissions_.sets().index_of(set, job_.rank);
  if (index < 0 || !job_.session.heap) return nullptr;
  auto registered = std::make_unique<ShmRegistered>(job_.session.arena, job_.session.heap,
                                                    submissions_.sets().ranks(set), index,
                                                    static_cast<int>(set), job_.patience, helpers_);
  report_absence(*registered);
  return registered;
}

void ScheduleReader::change_settings(const DriveLock& lock, const wire::RuntimeSettings& settings) {
  executor_.tune(tuning_of(settings));
  recording_.recorder().settings(settings);
  submissions_.apply(lock, settings);
}

void ScheduleReader::add_set(const DriveLock& lock, const wire::Schedule& schedule) {
  const std::uint32_t set = schedule.process_set;
  submissions_.add_set(lock, set, {schedule.ranks.begin(), schedule.ranks.end()});
  // First without a communicator: from then on no rank reads buffers that making one overwrites.
  executor_.add_set(set, nullptr);
  executor_.add_set(set, make_communicator(set));
  executor_.add_registered_set(set, make_registered(set));
  submissions_.finish_change(lock, schedule.entries.front(), set);
}

void ScheduleReader::remove_set(const DriveLock& lock, const wire::Schedule& schedule) {
  const std::uint32_t set = schedule.process_set;
  gpu_batches_.finish_all(lock);
  gpu_batches_.remove_set(lock, set);
  executor_.remove_set(set);
  submissions_.remove_set(lock, set);
  submissions_.finish_change(lock, schedule.entries.front(), set);
}

}  // namespace hvdtune
