#include "faces/running_engine.h"

#include <pthread.h>

#include <mutex>
#include <utility>

#include "base/error.h"

namespace hvdtune::faces {
namespace {

struct Holder {
  Holder() {
    // A fork must not copy the mutex while another thread, which the child does not have, holds it.
    pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                   [] { instance().mutex.unlock(); });
  }

  /// Never destroyed: a framework's threads may still call while the process exits.
  static Holder& instance() {
    static auto* const holder = new Holder;
    return *holder;
  }

  std::mutex mutex;
  std::shared_ptr<Engine> engine;
  std::string absence = "Horovod has not been initialized; use hvd.init().";
};

}  // namespace

void begin_running(std::shared_ptr<Engine> engine) {
  Holder& holder = Holder::instance();
  const std::lock_guard lock(holder.mutex);
  holder.engine.swap(engine);
}

void end_running(const std::string& absence) {
  Holder& holder = Holder::instance();
  std::shared_ptr<Engine> ended;  // released without the mutex: its end may take time
  const std::lock_guard lock(holder.mutex);
  holder.engine.swap(ended);
  holder.absence = absence;
}

std::shared_ptr<Engine> running_engine() {
  Holder& holder = Holder::instance();
  const std::lock_guard lock(holder.mutex);
  if (!holder.engine) throw Error(ErrorKind::kNotInitialized, holder.absence);
  return holder.engine;
}

}  // namespace hvdtune::faces
