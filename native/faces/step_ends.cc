#include "faces/step_ends.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "faces/running_engine.h"

namespace hvdtune::faces {
namespace {

// Some programs do several steps with one model for each step of another.
constexpr int kStepsOfOthers = 32;

std::atomic<bool> program_tells{false};
std::atomic<std::uint64_t> counted{0};

/// Whose steps count.
class Owner {
 public:
  bool is(std::int64_t owner) {
    const std::lock_guard lock(mutex_);
    if (!known_ || (owner != owner_ && ++others_ >= kStepsOfOthers)) {
      known_ = true;
      owner_ = owner;
    }
    if (owner == owner_) others_ = 0;
    return owner == owner_;
  }

 private:
  std::mutex mutex_;
  bool known_ = false;
  std::int64_t owner_ = 0;
  int others_ = 0;  ///< steps of others since the owner's last
};

Owner& owner_of_steps() {
  static auto* const owner = new Owner;  // a framework's threads may still call it at exit
  return *owner;
}

}  // namespace

void end_step(std::int64_t owner) {
  if (program_tells) return;
  try {
    const std::shared_ptr<Engine> engine = running_engine();
    if (!owner_of_steps().is(owner)) return;
    engine->mark_step();
    ++counted;
  } catch (const Error&) {
    return;  // a function that outlives its job
  }
}

std::uint64_t steps_ended() { return counted; }

void leave_steps_to_program() { program_tells = true; }

}  // namespace hvdtune::faces
