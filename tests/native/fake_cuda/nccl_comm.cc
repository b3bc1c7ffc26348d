#include "nccl_comm.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "faults.h"
#include "nccl_reduce.h"

namespace fake_cuda {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kConnecting{2};

}  // namespace

Comm::Comm(int size, int rank, int device, bool blocking)
    : size_(size), rank_(rank), device_(device), blocking_(blocking) {}

Comm::~Comm() {
  for (const int peer : peers_) close(peer);
}

void Comm::fail(NcclResult result, const std::string& text) {
  {
    const std::lock_guard lock(text_mutex_);
    text_ = text;
  }
  state_ = result;
}

const char* Comm::last_error() const {
  static thread_local std::string text;
  const std::lock_guard lock(text_mutex_);
  text = text_;
  return text.c_str();
}

NcclResult Comm::ready() const {
  const NcclResult state = state_;
  return state == NcclResult::kInProgress ? NcclResult::kInvalidArgument : state;
}

/// In a thread of its own, or at once where calls block.
void Comm::later(const std::function<void()>& body) {
  if (blocking_) return body();
  std::thread([self = shared_from_this(), body] { body(); }).detach();
}

void Comm::look_at_peers() {
  if (fault("silent") || state_ == NcclResult::kRemoteError) return;
  for (const int peer : peers_) {
    pollfd look{peer, POLLIN, 0};
    if (poll(&look, 1, 0) > 0) return fail(NcclResult::kRemoteError, "a member has died");
  }
}

/// Until ready(); false where the communicator was aborted before.
bool Comm::wait(const std::function<bool()>& ready) {
  for (int looks = 0; !ready(); ++looks) {
    if (aborted_) return false;
    if (looks % 64 == 63) look_at_peers();
    if (looks < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(microseconds(looks < 1000 ? 20 : 500));
    }
  }
  return !aborted_;
}

bool Comm::barrier() {
  Meeting::Shared& shared = meeting_->shared();
  const std::uint64_t mine = ++shared.members[rank_].arrived;
  return wait([&] {
    for (int member = 0; member < size_; ++member) {
      if (shared.members[member].arrived < mine) return false;
    }
    return true;
  });
}

void Comm::join(const NcclUniqueId& id) {
  state_ = NcclResult::kInProgress;
  later([this, id] {
    std::string problem;
    if (fault("init-fails")) problem = "no network";
    if (problem.empty()) meeting_ = Meeting::open(id, problem);
    if (!problem.empty()) return fail(NcclResult::kSystemError, problem);
    Meeting::Shared& shared = meeting_->shared();
    Meeting::Member& own = shared.members[rank_];
    own.device = device_;
    if (own.pid.exchange(getpid()) != 0) {
      return fail(NcclResult::kInvalidUsage, "rank used twice");
    }
    int none = 0;
    if (!shared.size.compare_exchange_strong(none, size_) && none != size_) {
      return fail(NcclResult::kInvalidUsage, "different sizes");
    }
    ++shared.joined;
    if (!wait([&] { return shared.joined >= size_; })) return;
    Meeting::forget(id);
    bool shares = false;
    for (int member = 0; member < size_; ++member) {
      if (member == rank_) continue;
      shares = shares || shared.members[member].device == device_;
      if (shared.members[member].pid == getpid()) continue;
      const long fd = syscall(SYS_pidfd_open, shared.members[member].pid.load(), 0);
      if (fd < 0) return fail(NcclResult::kRemoteError, "a member has died");
      peers_.push_back(static_cast<int>(fd));
    }
    const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool may_share =
        setting("nccl", 23000) >= 23000 && allowed != nullptr && std::string(allowed) == "1";
    if (shares && !may_share) return fail(NcclResult::kInvalidUsage, "Duplicate GPU detected");
    if (barrier()) state_ = NcclResult::kSuccess;
  });
}

/// A place in the order of what a communicator does. Its end is the end of the work, whether that
/// ran, or was dropped with its stream.
struct Comm::Turn {
  explicit Turn(std::shared_ptr<Comm> of) : comm(std::move(of)) {
    const std::lock_guard lock(comm->order_mutex_);
    number = comm->issued_++;
  }
  ~Turn() {
    const std::lock_guard lock(comm->order_mutex_);
    ++comm->finished_;
    comm->order_changed_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  std::shared_ptr<Comm> comm;
  std::uint64_t number;
};

std::atomic<int> Comm::used{0};

NcclResult Comm::issue(Work work, std::shared_ptr<Stream> stream) {
  const bool first = !connected_;
  if (first) ++used;
  connected_ = true;
  auto turn = std::make_shared<const Turn>(shared_from_this());
  const auto enqueue = [work = std::move(work), turn = std::move(turn),
                        stream = std::move(stream)] {
    fake_cuda::enqueue(*stream, [work, turn] { return turn->comm->run(work, *turn); });
  };
  if (!first || blocking_) {
    enqueue();
    return NcclResult::kSuccess;
  }
  state_ = NcclResult::kInProgress;
  later([this, enqueue] {
    std::this_thread::sleep_for(kConnecting);
    enqueue();
    NcclResult expected = NcclResult::kInProgress;
    state_.compare_exchange_strong(expected, NcclResult::kSuccess);
  });
  return NcclResult::kInProgress;
}

NcclResult Comm::finalize() {
  state_ = NcclResult::kInProgress;
  later([this] {
    drain();
    if (!aborted_ && barrier()) state_ = NcclResult::kSuccess;
  });
  return blocking_ ? state_.load() : NcclResult::kInProgress;
}

NcclResult Comm::open_window(std::size_t bytes, std::function<void()> made) {
  state_ = NcclResult::kInProgress;
  ++opening_;
  later([this, bytes, made = std::move(made)] {
    const std::unique_ptr<std::atomic<int>, void (*)(std::atomic<int>*)> end(
        &opening_, [](std::atomic<int>* opening) { --*opening; });
    Meeting::Shared& shared = meeting_->shared();
    Meeting::Member& own = shared.members[rank_];
    own.window_bytes = bytes;
    const std::uint64_t mine = ++own.windows;
    for (int member = 0; member < size_; ++member) {
      Meeting::Member& other = shared.members[member];
      if (!wait([&] { return other.windows >= mine; })) return;
      if (other.windows == mine && other.window_bytes != bytes) {
        return fail(NcclResult::kInvalidArgument, "windows of different lengths");
      }
    }
    made();
    NcclResult expected = NcclResult::kInProgress;
    state_.compare_exchange_strong(expected, NcclResult::kSuccess);
  });
  return blocking_ ? state_.load() : NcclResult::kSuccess;
}

void Comm::drain() {
  std::unique_lock lock(order_mutex_);
  order_changed_.wait(lock, [&] { return finished_ == issued_; });
}

void Comm::abort() {
  aborted_ = true;
  while (opening_ > 0) std::this_thread::yield();  // who asked for it is not written to any more
  drain();
}

NcclResult Comm::make_op(NcclOp* op, double scalar, NcclType type) {
  const std::lock_guard lock(order_mutex_);
  ops_[next_op_] = {scalar, type};
  *op = static_cast<NcclOp>(next_op_++);
  return NcclResult::kSuccess;
}

NcclResult Comm::destroy_op(NcclOp op) {
  const std::lock_guard lock(order_mutex_);
  return ops_.erase(static_cast<int>(op)) == 1 ? NcclResult::kSuccess
                                               : NcclResult::kInvalidArgument;
}

bool Comm::scalar_of(NcclOp op, NcclType type, double* scalar) {
  const std::lock_guard lock(order_mutex_);
  const auto found = ops_.find(static_cast<int>(op));
  if (found == ops_.end() || found->second.second != type) return false;
  *scalar = found->second.first;
  return true;
}

CudaResult Comm::run(const Work& work, const Turn& turn) {
  const bool in_turn = wait([&] {
    const std::lock_guard lock(order_mutex_);
    return finished_ >= turn.number;
  });
  if (!in_turn) return CudaResult::kSuccess;
  // Who exchanges with whom is a matter of the two.
  const bool pairs = static_cast<Kind>(work.step.kind) == Kind::kExchange;
  return pairs || agree(work.step) ? perform(work) : CudaResult::kSuccess;
}

/// Whether all members do the same. If not, it says so and hangs until it is aborted, as NCCL
/// would.
bool Comm::agree(const Step& step) {
  Meeting::Shared& shared = meeting_->shared();
  shared.members[rank_].step = step;
  if (!barrier()) return false;
  bool same = true;
  for (int member = 0; member < size_; ++member) {
    same = same && shared.members[member].step == step;
  }
  if (!same) {
    fail(NcclResult::kInvalidUsage, "the members call different collectives");
    wait([] { return false; });
    return false;
  }
  return barrier();
}

std::size_t Comm::bytes_of(const Step& step, std::uint64_t count) const {
  return count * nccl_size(static_cast<NcclType>(step.type));
}

CudaResult Comm::perform(const Work& work) {
  switch (static_cast<Kind>(work.step.kind)) {
    case Kind::kAllReduce:
      return allreduce(work);
    case Kind::kBroadcast:
      return broadcast(work);
    case Kind::kAllGather:
      return allgather(work);
    case Kind::kReduceScatter:
      return reducescatter(work);
    case Kind::kExchange:
      return exchange(work);
  }
  return CudaResult::kUnknown;
}

CudaResult Comm::allreduce(const Work& work) {
  const auto type = static_cast<NcclType>(work.step.type);
  const std::size_t bytes = bytes_of(work.step, work.step.count);
  const std::byte* const in = memory(work.in, bytes);
  std::byte* const out = memory(work.out, bytes);
  if (in == nullptr || out == nullptr) return CudaResult::kIllegalAddress;
  std::vector<const std::byte*> windows;
  for (int member = 0; member < size_; ++member) windows.push_back(meeting_->window(member));
  for (std::size_t at = 0; at < bytes; at += kWindowBytes) {
    const std::size_t part = std::min(kWindowBytes, bytes - at);
    std::memcpy(meeting_->window(rank_), in + at, part);
    if (!barrier()) return CudaResult::kSuccess;
    nccl_reduce(out + at, windows, part / nccl_size(type), type, static_cast<NcclOp>(work.step.op),
                work.step.scalar);
    if (!barrier()) return CudaResult::kSuccess;
  }
  return CudaResult::kSuccess;
}

CudaResult Comm::broadcast(const Work& work) {
  const std::size_t bytes = bytes_of(work.step, work.step.count);
  const bool root = work.step.root == rank_;
  const std::byte* const in = root ? memory(work.in, bytes) : nullptr;
  std::byte* const out = memory(work.out, bytes);
  if ((root && in == nullptr) || out == nullptr) return CudaResult::kIllegalAddress;
  for (std::size_t at = 0; at < bytes; at += kWindowBytes) {
    const std::size_t part = std::min(kWindowBytes, bytes - at);
    if (root) std::memcpy(meeting_->window(rank_), in + at, part);
    if (!barrier()) return CudaResult::kSuccess;
    std::memcpy(out + at, meeting_->window(work.step.root), part);
    if (!barrier()) return CudaResult::kSuccess;
  }
  return CudaResult::kSuccess;
}

CudaResult Comm::allgather(const Work& work) {
  const std::size_t bytes = bytes_of(work.step, work.step.count);
  const std::byte* const in = memory(work.in, bytes);
  std::byte* const out = memory(work.out, bytes * static_cast<std::size_t>(size_));
  if (in == nullptr || out == nullptr) return CudaResult::kIllegalAddress;
  for (std::size_t at = 0; at < bytes; at += kWindowBytes) {
    const std::size_t part = std::min(kWindowBytes, bytes - at);
    std::memcpy(meeting_->window(rank_), in + at, part);
    if (!barrier()) return CudaResult::kSuccess;
    for (int member = 0; member < size_; ++member) {
      std::memcpy(out + static_cast<std::size_t>(member) * bytes + at, meeting_->window(member),
                  part);
    }
    if (!barrier()) return CudaResult::kSuccess;
  }
  return CudaResult::kSuccess;
}

CudaResult Comm::reducescatter(const Work& work) {
  const auto type = static_cast<NcclType>(work.step.type);
  const std::size_t bytes = bytes_of(work.step, work.step.count);
  const std::byte* const in = memory(work.in, bytes * static_cast<std::size_t>(size_));
  std::byte* const out = memory(work.out, bytes);
  if (in == nullptr || out == nullptr) return CudaResult::kIllegalAddress;
  // `out` may be a share of `in`, which the other shares' rounds do not read: but their own does.
  std::vector<std::byte> result(bytes);
  std::vector<const std::byte*> windows;
  for (int member = 0; member < size_; ++member) windows.push_back(meeting_->window(member));
  for (int share = 0; share < size_; ++share) {
    for (std::size_t at = 0; at < bytes; at += kWindowBytes) {
      const std::size_t part = std::min(kWindowBytes, bytes - at);
      std::memcpy(meeting_->window(rank_), in + static_cast<std::size_t>(share) * bytes + at, part);
      if (!barrier()) return CudaResult::kSuccess;
      if (share == rank_) {
        nccl_reduce(result.data() + at, windows, part / nccl_size(type), type,
                    static_cast<NcclOp>(work.step.op), work.step.scalar);
      }
      if (!barrier()) return CudaResult::kSuccess;
    }
  }
  std::memcpy(out, result.data(), bytes);
  return CudaResult::kSuccess;
}

namespace {

/// As much of a transfer as there is room for, or has come; how many bytes.
std::size_t send_some(Channel& channel, const std::byte* from, std::size_t left) {
  const std::uint64_t written = channel.written.load(std::memory_order_relaxed);
  const std::size_t room = kChannelBytes - (written - channel.read.load());
  const std::size_t start = written % kChannelBytes;
  const std::size_t bytes = std::min({left, room, kChannelBytes - start});
  std::memcpy(channel.ring + start, from, bytes);
  channel.written = written + bytes;
  return bytes;
}

std::size_t receive_some(Channel& channel, std::byte* to, std::size_t left) {
  const std::uint64_t read = channel.read.load(std::memory_order_relaxed);
  const std::size_t there = channel.written.load() - read;
  const std::size_t start = read % kChannelBytes;
  const std::size_t bytes = std::min({left, there, kChannelBytes - start});
  std::memcpy(to, channel.ring + start, bytes);
  channel.read = read + bytes;
  return bytes;
}

}  // namespace

CudaResult Comm::exchange(const Work& work) {
  struct Half {
    Channel& channel;
    std::byte* at;
    std::size_t left;
  };
  std::vector<Half> sends;
  std::vector<Half> receives;
  for (const Transfer& transfer : work.sends) {
    std::byte* const at = memory(transfer.at, transfer.bytes);
    if (at == nullptr) return CudaResult::kIllegalAddress;
    sends.push_back({meeting_->channel(rank_, transfer.peer), at, transfer.bytes});
  }
  for (const Transfer& transfer : work.receives) {
    std::byte* const at = memory(transfer.at, transfer.bytes);
    if (at == nullptr) return CudaResult::kIllegalAddress;
    receives.push_back({meeting_->channel(transfer.peer, rank_), at, transfer.bytes});
  }
  wait([&] {
    std::size_t left = 0;
    for (Half& half : sends) {
      const std::size_t moved = send_some(half.channel, half.at, half.left);
      half.at += moved;
      left += half.left -= moved;
    }
    for (Half& half : receives) {
      const std::size_t moved = receive_some(half.channel, half.at, half.left);
      half.at += moved;
      left += half.left -= moved;
    }
    return left == 0;
  });
  return CudaResult::kSuccess;
}

}  // namespace fake_cuda
