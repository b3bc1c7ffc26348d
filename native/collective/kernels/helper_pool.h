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

/// How many helpers a rank has when the choice is left to it: as many as fit into the `cpus` that
/// the `ranks` of its host have together, shared out evenly, beside a CPU for each rank; no more
/// than its own `own_cpus` have room for, and kMostChosenHelpers. 0 where ranks are alone on their
/// host.
int fitting_helpers(int ranks, int cpus, int own_cpus);

/// A chunk gives a rank's threads 256 KiB or less at a time: four pieces, if none is shorter than
/// is worth handing over.
inline constexpr int kMostChosenHelpers = 3;
/// Most that can be asked for; hvdtune/settings/knobs.py has the same number.
inline constexpr int kMostHelpers = 16;

struct HelperOptions {
  int threads = 0;
  Patience patience = {};  ///< of helpers that wait for work, and of who waits for helpers
  /// Bytes of the shortest piece that work is cut into, but for what is left at the end:
  /// docs/performance.md has the measurements.
  std::size_t least_piece = 64 << 10;
  /// Bytes of the shortest operation for which helpers are called at all: to wake one takes about
  /// half as long as to reduce so much without.
  std::size_t least_message = 2 << 20;
};

/// Threads of a rank that help it with work on ranges of bytes: copying and reducing. One core
/// cannot move as many bytes as a machine's memory can give; where there are more cores than ranks,
/// a rank's helpers use those that are left over.
///
/// The work is cut into pieces, and whoever is running takes the next one: the caller does not wait
/// for a helper to begin, and does everything alone where none comes in time. It waits only for
/// pieces that a helper has taken. Between two pieces of work, helpers stay awake for as long as
/// their patience says, then sleep; without work they use no CPU. They take no signals.
///
/// One thread at a time may call, any helper may run any piece. In a forked child there are no
/// helpers: nothing of this may be called there, not even the destructor.
class HelperPool {
 public:
  /// Without helpers: no thread, and share() is a call of `work`.
  HelperPool() : HelperPool(HelperOptions{}) {}
  /// Where the system starts fewer threads than asked for, the others help, and the log says so.
  explicit HelperPool(const HelperOptions& options);
  ~HelperPool() { stop(); }
  HelperPool(const HelperPool&) = delete;
  HelperPool& operator=(const HelperPool&) = delete;

  [[nodiscard]] int helpers() const { return static_cast<int>(threads_.size()); }

  /// Ends and joins the helpers; share() works without them from now on. Idempotent.
  void stop();

  /// CPU time that the helpers have taken since this was last asked, or since they began: at work,
  /// and awake for more. The kernel is asked, once a helper, only if they were called since then;
  /// what they stay awake for afterwards counts the next time. By who calls share().
  Nanos cpu_since_asked();

  /// Calls work(begin, end) for ranges that together are [0, bytes), each once, some of them on
  /// helpers, and returns when all have returned. Every range begins at a multiple of a cache line.
  /// What helpers have written is then ordered like the caller's own writes, also what they have
  /// streamed (see copy_unordered). `message`: bytes of the operation that this is a part of; 0:
  /// nobody is to help.
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
  /// What share() was called for.
  struct Task {
    std::size_t bytes;
    std::size_t piece;  ///< bytes of all pieces but the last
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
  Nanos cpu_told_ = 0;             // all that cpu_since_asked() has told of
  bool called_ = false;            // since then
  /// Pieces that nobody has taken yet, or kStop. A count is all that has to be right when a piece
  /// is taken: who comes late, with a count of earlier work, takes a piece of the present one.
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
