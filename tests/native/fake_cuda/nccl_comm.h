#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda.h"
#include "nccl_meeting.h"

namespace fake_cuda {

enum class Kind : int { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kExchange };

/// Bytes to or from a member.
struct Transfer {
  int peer;
  CudaPointer at;
  std::size_t bytes;
};

/// One collective of one member; as Step, with this member's own addresses.
struct Work {
  Step step{};
  CudaPointer in = 0;
  CudaPointer out = 0;
  std::vector<Transfer> sends = {};
  std::vector<Transfer> receives = {};
};

/// One member of a communicator. What it is given runs in the threads of streams, in the order in
/// which it was given, whichever the streams.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(int size, int rank, int device, bool blocking);
  ~Comm();

  /// Meets the others; as long as it takes. In a thread of its own where the communicator does not
  /// block.
  void join(const NcclUniqueId& id);
  /// Enqueues; not before the first time's preparations are over (which take a moment, as NCCL
  /// connects when it must).
  NcclResult issue(Work work, std::shared_ptr<Stream> stream);
  NcclResult finalize();
  /// Meets the others, who open a window of the same length; then `made`. Where the communicator
  /// does not block it says kSuccess at once, though it is in progress, as NCCL 2.31 does.
  NcclResult open_window(std::size_t bytes, std::function<void()> made);
  void abort();
  /// Until nothing of it runs.
  void drain();

  NcclResult make_op(NcclOp* op, double scalar, NcclType type);
  NcclResult destroy_op(NcclOp op);
  /// The factor of an operator that make_op() made for this type; whether there is one.
  bool scalar_of(NcclOp op, NcclType type, double* scalar);

  [[nodiscard]] NcclResult state() const { return state_; }
  /// Whether it can be used at present.
  [[nodiscard]] NcclResult ready() const;
  [[nodiscard]] bool blocking() const { return blocking_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] int size() const { return size_; }
  /// Valid until the next call of the same thread.
  [[nodiscard]] const char* last_error() const;

  static std::atomic<int> used;  ///< communicators that were ever given something

  std::mutex mutex;
  std::set<void*> registered;                  ///< handles
  std::map<CudaPointer, std::size_t> windows;  ///< address → bytes

 private:
  bool wait(const std::function<bool()>& ready);
  bool barrier();
  void look_at_peers();
  void fail(NcclResult result, const std::string& text);
  void later(const std::function<void()>& body);

  struct Turn;
  CudaResult run(const Work& work, const Turn& turn);
  bool agree(const Step& step);
  CudaResult perform(const Work& work);
  CudaResult allreduce(const Work& work);
  CudaResult broadcast(const Work& work);
  CudaResult allgather(const Work& work);
  CudaResult reducescatter(const Work& work);
  CudaResult exchange(const Work& work);

  [[nodiscard]] std::byte* memory(CudaPointer at, std::size_t bytes) const {
    return memory_of(device_, at, bytes);
  }
  [[nodiscard]] std::size_t bytes_of(const Step& step, std::uint64_t count) const;

  const int size_;
  const int rank_;
  const int device_;
  const bool blocking_;
  std::shared_ptr<Meeting> meeting_;
  std::vector<int> peers_;  ///< pidfds

  std::atomic<NcclResult> state_{NcclResult::kSuccess};
  std::atomic<bool> aborted_{false};
  std::atomic<int> opening_{0};  ///< windows
  bool connected_ = false;       ///< something was issued before
  mutable std::mutex text_mutex_;
  std::string text_;

  std::mutex order_mutex_;
  std::condition_variable order_changed_;
  std::uint64_t issued_ = 0;
  std::uint64_t finished_ = 0;
  std::map<int, std::pair<double, NcclType>> ops_;
  int next_op_ = 5;
};

}  // namespace fake_cuda
