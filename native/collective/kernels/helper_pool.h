#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/threads/patience.h"

namespace hvdtune {

/// The default number of helpers of a rank: its even share of the `cpus` that the `ranks` of its
/// host have together, after one CPU for each rank. At most as many as fit its own `own_cpus`, and
/// kMostChosenHelpers. 0 if a rank is alone on its host.
int fitting_helpers(int ranks, int cpus, int own_cpus);

/// A rank's threads get 256 KiB or less of a chunk at a time: at most four pieces that are long
/// enough to be worth handing over.
inline constexpr int kMostChosenHelpers = 3;
/// The most helpers that a user can set; hvdtune/settings/knobs.py has the same number.
inline constexpr int kMostHelpers = 16;

struct HelperOptions {
  int threads = 0;
  Patience patience = {};  ///< of helpers that wait for work, and of callers that wait for helpers
  /// Bytes of the shortest piece that work is cut into, except for the last one:
  /// docs/performance.md has the measurements.
  std::size_t least_piece = 64 << 10;
  /// Bytes of the shortest operation for which helpers are called at all: waking one takes about
  /// half as long as reducing this much without it.
  std::size_t least_message = 2 << 20;
};

/// Threads of a rank that help it with work on ranges of bytes: copying and reducing. One core
/// cannot use all of a machine's memory bandwidth; if there are more cores than ranks, a rank's
/// helpers use the remaining ones.
///
/// The work is cut into pieces, and any running thread takes the next one: the caller does not wait
/// for a helper to begin, and does everything alone if none starts in time. It waits only for
/// pieces that a helper has taken. Between two pieces of work, helpers stay awake for as long as
/// their patience allows, then sleep; without work they use no CPU. They receive no signals.
///
/// One thread at a time may call, any helper may run any piece. A forked child has no helpers and
/// must not call anything of this class, not even the destructor.
class HelperPool {
 public:
  /// Without helpers: there is no thread, and share() just calls `work`.
  HelperPool() : HelperPool(HelperOptions{}) {}
  /// If the system starts fewer threads than requested, the pool works with those, and logs a
  /// warning.
  explicit HelperPool(const HelperOptions& options);
  ~HelperPool() { stop(); }
  HelperPool(const HelperPool&) = delete;
  HelperPool& operator=(const HelperPool&) = delete;

  [[nodiscard]] int helpers() const { return static_cast<int>(threads_.size()); }

  /// Ends and joins the helpers; share() works without them from now on. Idempotent.
  void stop();

  /// CPU time that the helpers have used since the last call, or since they began: both at work,
  /// and awake for more work. Asks the kernel, once per helper, only if helpers were called since
  /// then; time that they stay awake afterwards counts in the next call. Only for the thread that
  /// calls share().
  Nanos cpu_since_asked();

  /// Calls work(begin, end) for ranges that together are [0, bytes), each once, some of them on
  /// helpers, and returns when all have returned. Every range begins at a multiple of a cache line.
  /// The helpers' writes are then ordered like the caller's own, including streamed ones (see
  /// copy_unordered). `message`: bytes of the operation that this is a part of; 0: use no helpers.
  /// `work` must not throw, and its result must not depend on how [0, bytes) is cut.
  template <typename Work>
  void share(std::size_t message, std::size_t bytes, Work&& work) {
    if (threads_.empty() || message == 0 || message < options_.least_message ||
        bytes < 2 * options_.least_piece) {
      if (bytes > 0) work(std::size_t{0}, bytes);
      return;
    }
    using Plain = std::remove_reference_t<Work>;
    run({bytes, 0, 0, &work, [](const void* context, std::size_t begin, std::size_t end) noexcept {
           (*static_cast<const Plain*>(context))(begin, end);
         }});
  }

 private:
  /// The work of a call of share().
  struct Task {
    std::size_t bytes;
    std::size_t piece;  ///< bytes of each piece except the last
    std::uint32_t pieces;
    const void* context;
    void (*work)(const void* context, std::size_t begin, std::size_t end);
  };

  void run(Task task);
  std::uint32_t take_pieces();
  void help();
  void await_helpers();

  HelperOptions options_;
  std::vector<std::thread> threads_;
  std::vector<clockid_t> clocks_;  // of the threads' CPU time
  Nanos cpu_told_ = 0;             // all that cpu_since_asked() has returned
  bool called_ = false;            // since then
  /// Pieces that nobody has taken yet, or kStop. Taking a piece only requires the right count: a
  /// late thread that holds an equal count of earlier work takes a piece of the present one.
  alignas(64) std::atomic<std::uint32_t> left_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  Task task_{};  // changes only while no piece of it is left or under way
  /// Pieces that are not done yet.
  alignas(64) std::atomic<std::uint32_t> undone_{0};
  std::atomic<std::uint32_t> caller_sleeps_{0};
};

/// `helpers`, or a pool without any.
std::shared_ptr<HelperPool> or_none(std::shared_ptr<HelperPool> helpers);

}  // namespace hvdtune
