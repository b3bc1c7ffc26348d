#include "observe/stragglers/cpu_waits.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/cpu/cpu_wait.h"

namespace hvdtune {

std::vector<Nanos> CpuWaits::read() const {
  std::vector<Nanos> waits;
  for (const int pid : pids_) {
    const std::optional<Nanos> waited = cpu_wait_of_main_thread(pid);
    if (!waited) return {};  // such a kernel, or a rank that is gone or has no pid here
    waits.push_back(*waited);
  }
  return waits;
}

void CpuWaits::step_ended(std::uint64_t step) {
  const std::uint64_t last = samples_[1].step;
  if (last != 0 && step - last < kEvery) return;
  // An old reading says nothing about the present steps.
  samples_[0] = step - last < 2 * kEvery ? std::move(samples_[1]) : Sample{};
  samples_[1] = {step, read()};
}

Nanos CpuWaits::excess(int rank, std::uint64_t step) const {
  const Sample& since = counted_from();
  const std::vector<Nanos> now = read();
  if (now.size() != since.waits.size() || now.empty() || step <= since.step) return 0;
  std::vector<Nanos> waited(now.size());
  for (std::size_t i = 0; i < now.size(); ++i) waited[i] = now[i] - since.waits[i];
  const Nanos its = waited[static_cast<std::size_t>(rank)];
  const auto middle = waited.begin() + static_cast<std::ptrdiff_t>((waited.size() - 1) / 2);
  std::nth_element(waited.begin(), middle, waited.end());
  return (its - *middle) / static_cast<Nanos>(step - since.step);
}

}  // namespace hvdtune
