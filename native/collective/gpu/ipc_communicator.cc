#include "collective/gpu/ipc_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "collective/activities.h"
#include "collective/exchange_texts.h"

namespace hvdtune {
namespace {

/// A member's description of itself for the others.
struct Offer {
  CudaEventHandle events[4];  ///< written and read, of each half
};

constexpr std::size_t kOfferWords = sizeof(Offer) / sizeof(std::int64_t);
static_assert(sizeof(Offer) % sizeof(std::int64_t) == 0);

}  // namespace

std::unique_ptr<IpcCommunicator> IpcCommunicator::connect(Communicator& control,
                                                          std::shared_ptr<const Device> device,
                                                          std::shared_ptr<DeviceKernels> kernels,
                                                          IpcOptions options) {
  std::unique_ptr<IpcCommunicator> made(
      new IpcCommunicator(control, std::move(device), std::move(kernels), options));
  std::string problem;
  try {
    made->open();
  } catch (const Error& error) {
    problem = error.what();
  }
  all_or_none(control, problem);
  made->buffers_.emplace(control, made->device_, 2 * options.window_bytes);
  made->share();
  made->connected_ = true;
  return made;
}

IpcCommunicator::IpcCommunicator(Communicator& control, std::shared_ptr<const Device> device,
                                 std::shared_ptr<DeviceKernels> kernels, IpcOptions options)
    : control_(control),
      device_(std::move(device)),
      kernels_(std::move(kernels)),
      options_(options),
      size_(control.size()),
      index_(control.index()) {
  HVD_CHECK(options_.window_bytes > 0 && options_.window_bytes % 4096 == 0);
}

/// Creates this member's own buffer and events.
void IpcCommunicator::open() {
  if (size_ > kMostKernelSources) {
    throw Error(ErrorKind::kInvalidArgument,
                "CUDA IPC is for at most " + std::to_string(kMostKernelSources) + " ranks");
  }
  if (!kernels_->compiled()) {
    throw Error(ErrorKind::kInvalidArgument, "CUDA IPC needs kernels: " + kernels_->why_not());
  }
  members_.resize(static_cast<std::size_t>(size_));
  Member& own = members_[static_cast<std::size_t>(index_)];
  for (Half& half : own.halves) {
    half.written = std::make_unique<PeerEvent>(device_);
    half.read = std::make_unique<PeerEvent>(device_);
  }
}

/// Collective: each member opens the others' events.
void IpcCommunicator::share() {
  std::string problem;
  Offer offer{};
  const Member& own = members_[static_cast<std::size_t>(index_)];
  try {
    for (std::size_t half = 0; half < 2; ++half) {
      offer.events[2 * half] = own.halves[half].written->handle();
      offer.events[2 * half + 1] = own.halves[half].read->handle();
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  std::vector<std::int64_t> words(kOfferWords);
  std::memcpy(words.data(), &offer, sizeof offer);
  const std::vector<std::int64_t> all = control_.exchange(words);
  all_or_none(control_, problem);
  std::vector<Offer> offers(members_.size());
  std::memcpy(offers.data(), all.data(), all.size() * sizeof(all[0]));
  try {
    for (std::size_t other = 0; other < members_.size(); ++other) {
      if (other == static_cast<std::size_t>(index_)) continue;
      const Offer& theirs = offers[other];
      for (std::size_t half = 0; half < 2; ++half) {
        Half& opened = members_[other].halves[half];
        opened.written = std::make_unique<PeerEvent>(device_, theirs.events[2 * half]);
        opened.read = std::make_unique<PeerEvent>(device_, theirs.events[2 * half + 1]);
      }
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  all_or_none(control_, problem);
}

IpcCommunicator::~IpcCommunicator() {
  // Others may still read this member's buffer. Each had called record() for its reads by the end
  // of the last operation, so this wait ends, even if members have left meanwhile.
  if (!connected_ || failure()) return;
  try {
    for (const Member& member : members_) {
      for (std::size_t half = 0; half < std::min<std::size_t>(round_, 2); ++half) {
        member.halves[half].read->synchronize();
      }
    }
  } catch (const Error&) {  // the GPU cannot be used any more
  }
}

const char* IpcCommunicator::activity(OpKind kind) const {
  static constexpr Activities kActivities("IPC");
  return kActivities.of(kind);
}

bool IpcCommunicator::supports(DType, ReduceOp op, double factor) const {
  if (op == ReduceOp::kAverage || op == ReduceOp::kAdasum) return false;
  return factor == 1.0 || op == ReduceOp::kSum;
}

void IpcCommunicator::check_supported(DType dtype, ReduceOp op, double factor) const {
  if (supports(dtype, op, factor)) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string("CUDA IPC cannot reduce ") + dtype_name(dtype) + " with operator " +
                  std::to_string(static_cast<int>(op)) + " and factor " + std::to_string(factor));
}

std::optional<std::string> IpcCommunicator::failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return {};
  return failure_;
}

void IpcCommunicator::abort() {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = "the exchange between GPUs was aborted";
}

/// An interrupted operation leaves the members in different rounds, so it is the last.
template <class Body>
void IpcCommunicator::guarded(const char* what, Body&& body) {
  if (const auto why = failure()) {
    throw Error(ErrorKind::kAborted, std::string(what) + ": " + *why);
  }
  try {
    const std::size_t before = round_;
    body();
    if (round_ != before) control_.barrier();  // all have called record() for all their reads
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = error.what();
    throw;
  }
}

// ---- rounds -------------------------------------------------------------------------------------

/// This member's half of the round may be written from here on in `stream`.
void IpcCommunicator::begin(CudaStream stream) {
  if (round_ < 2) return;
  // All members have called record() for the last round with this half: they did so before the
  // meet() of the following round.
  for (const Member& member : members_) member.halves[round_ % 2].read->wait(stream);
}

/// This member's half is written; from here on in `stream` all halves may be read.
void IpcCommunicator::meet(CudaStream stream) {
  Member& own = members_[static_cast<std::size_t>(index_)];
  own.halves[round_ % 2].written->record(stream);
  control_.barrier();
  for (const Member& member : members_) member.halves[round_ % 2].written->wait(stream);
}

/// This member has finished reading.
void IpcCommunicator::end(CudaStream stream) {
  members_[static_cast<std::size_t>(index_)].halves[round_ % 2].read->record(stream);
  ++round_;
}

CudaPointer IpcCommunicator::half_of(int member) const {
  return buffers_->at(member) + round_ % 2 * options_.window_bytes;
}

std::vector<CudaPointer> IpcCommunicator::halves(std::size_t offset) const {
  std::vector<CudaPointer> all;
  for (int member = 0; member < size_; ++member) all.push_back(half_of(member) + offset);
  return all;
}

// ---- operations ---------------------------------------------------------------------------------

void IpcCommunicator::allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                                ReduceOp op, double factor, CudaStream stream) {
  check_supported(dtype, op, factor);
  const std::size_t bytes = count * dtype_size(dtype);
  const bool one_shot = bytes <= options_.one_shot_limit;
  guarded("IPC_ALLREDUCE", [&] {
    for (std::size_t at = 0; at < bytes; at += options_.window_bytes) {
      const std::size_t part = std::min(options_.window_bytes, bytes - at);
      begin(stream);
      device_->copy(half_of(index_), in + at, part, stream);
      meet(stream);
      if (one_shot) {
        kernels_->reduce(halves(0), out + at, part / dtype_size(dtype), dtype, op, factor, stream);
        end(stream);
        continue;
      }
      std::vector<DevicePiece> shares;
      reduce_share(part / dtype_size(dtype), dtype, op, factor, shares, stream);
      meet(stream);
      for (int member = 0; member < size_; ++member) {
        const DevicePiece& share = shares[static_cast<std::size_t>(member)];
        device_->copy(out + at + share.at, half_of(member) + share.at, share.bytes, stream);
      }
      end(stream);
    }
  });
}

/// Every member reduces its share of a window into the same position of its half of the next round.
/// Ends this round and begins the next. `shares`: the positions of the shares.
void IpcCommunicator::reduce_share(std::size_t count, DType dtype, ReduceOp op, double factor,
                                   std::vector<DevicePiece>& shares, CudaStream stream) {
  const std::size_t size = dtype_size(dtype);
  const std::size_t bytes = count * size;
  const std::size_t each = padded((bytes + members_.size() - 1) / members_.size());
  for (std::size_t member = 0; member < members_.size(); ++member) {
    const std::size_t first = std::min(member * each, bytes);
    shares.push_back({first, std::min(each, bytes - first)});
  }
  const DevicePiece own = shares[static_cast<std::size_t>(index_)];
  const std::vector<CudaPointer> sources = halves(own.at);
  const std::size_t reading = round_;
  ++round_;
  begin(stream);
  kernels_->reduce(sources, half_of(index_) + own.at, own.bytes / size, dtype, op, factor, stream);
  members_[static_cast<std::size_t>(index_)].halves[reading % 2].read->record(stream);
}

void IpcCommunicator::broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                                CudaStream stream) {
  guarded("IPC_BCAST", [&] {
    for (std::size_t at = 0; at < bytes; at += options_.window_bytes) {
      const std::size_t part = std::min(options_.window_bytes, bytes - at);
      begin(stream);
      if (index_ == root) device_->copy(half_of(root), in + at, part, stream);
      meet(stream);
      if (index_ != root) {
        device_->copy(out + at, half_of(root), part, stream);
      } else if (in != out) {
        device_->copy(out + at, in + at, part, stream);
      }
      end(stream);
    }
  });
}

void IpcCommunicator::allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                                CudaStream stream) {
  guarded("IPC_ALLGATHER", [&] {
    for (std::size_t at = 0; at < bytes_each; at += options_.window_bytes) {
      const std::size_t part = std::min(options_.window_bytes, bytes_each - at);
      begin(stream);
      device_->copy(half_of(index_), in + at, part, stream);
      meet(stream);
      for (int member = 0; member < size_; ++member) {
        const CudaPointer place = out + static_cast<std::size_t>(member) * bytes_each + at;
        device_->copy(place, half_of(member), part, stream);
      }
      end(stream);
    }
  });
}

void IpcCommunicator::reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each,
                                    DType dtype, ReduceOp op, double factor, CudaStream stream) {
  check_supported(dtype, op, factor);
  const std::size_t bytes = count_each * dtype_size(dtype);
  const std::size_t slot =
      options_.window_bytes / members_.size() / kPieceAlignment * kPieceAlignment;
  guarded("IPC_REDUCESCATTER", [&] {
    for (std::size_t at = 0; at < bytes; at += slot) {
      const std::size_t part = std::min(slot, bytes - at);
      begin(stream);
      for (std::size_t share = 0; share < members_.size(); ++share) {
        device_->copy(half_of(index_) + share * slot, in + share * bytes + at, part, stream);
      }
      meet(stream);
      kernels_->reduce(halves(static_cast<std::size_t>(index_) * slot), out + at,
                       part / dtype_size(dtype), dtype, op, factor, stream);
      end(stream);
    }
  });
}

void IpcCommunicator::exchange(std::span<const DevicePiece> send,
                               std::span<const DevicePiece> receive, CudaStream stream) {
  const std::size_t slot =
      options_.window_bytes / members_.size() / kPieceAlignment * kPieceAlignment;
  const auto own = static_cast<std::size_t>(index_);
  guarded("IPC_ALLTOALL", [&] {
    if (send[own].at != receive[own].at) {
      device_->copy(receive[own].at, send[own].at, send[own].bytes, stream);
    }
    // Every round includes all members, even those with less to send.
    std::int64_t longest = 0;
    for (std::size_t member = 0; member < send.size(); ++member) {
      if (member == own) continue;
      longest = std::max(longest, static_cast<std::int64_t>(send[member].bytes));
    }
    longest = std::ranges::max(control_.exchange({longest}));
    for (std::size_t at = 0; at < static_cast<std::size_t>(longest); at += slot) {
      const auto part = [&](const DevicePiece& piece) {
        return piece.bytes > at ? std::min(slot, piece.bytes - at) : 0;
      };
      begin(stream);
      for (std::size_t member = 0; member < send.size(); ++member) {
        if (member == own) continue;
        device_->copy(half_of(index_) + member * slot, send[member].at + at, part(send[member]),
                      stream);
      }
      meet(stream);
      for (std::size_t member = 0; member < receive.size(); ++member) {
        if (member == own) continue;
        device_->copy(receive[member].at + at, half_of(static_cast<int>(member)) + own * slot,
                      part(receive[member]), stream);
      }
      end(stream);
    }
  });
}

}  // namespace hvdtune
