#include "collective/gpu/nccl_communicator.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "base/log.h"
#include "collective/activities.h"
#include "collective/exchange_texts.h"

namespace hvdtune {
namespace {

/// The first NCCL that lets members share a GPU.
constexpr int kSharesGpus = 23000;
/// NCCL_CTA_POLICY_ZERO, and the first NCCL that has it.
constexpr int kZeroCtas = 2;
constexpr int kHasZeroCtas = 22800;
/// The most thread blocks of any NCCL collective; NCCL lowers it for a GPU with fewer.
constexpr int kMostCtas = 64;

/// NCCL's type for data of `dtype`, if it can reduce them. bool: as bytes 0 and 1.
std::optional<NcclType> nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kBool:
      return NcclType::kUint8;
    case DType::kInt8:
      return NcclType::kInt8;
    case DType::kInt32:
      return NcclType::kInt32;
    case DType::kInt64:
      return NcclType::kInt64;
    case DType::kFloat16:
      return NcclType::kFloat16;
    case DType::kBfloat16:
      return NcclType::kBfloat16;
    case DType::kFloat32:
      return NcclType::kFloat32;
    case DType::kFloat64:
      return NcclType::kFloat64;
    case DType::kUint16:
    case DType::kInt16:
      return {};
  }
  return {};
}

std::optional<NcclOp> nccl_op(DType dtype, ReduceOp op) {
  const bool logical = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return logical ? NcclOp::kMax : NcclOp::kSum;
    case ReduceOp::kProduct:
      return logical ? NcclOp::kMin : NcclOp::kProd;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      return {};
  }
  return {};
}

/// A factor in the type of the data, as NCCL expects it.
union Scalar {
  double f64;
  float f32;
  std::uint16_t f16;
};

/// `factor` as `dtype`; nothing if that is not a floating type, or if the factor would lose digits
/// of that type's precision.
std::optional<Scalar> scalar_of(DType dtype, double factor) {
  Scalar scalar{};
  double kept = factor;
  const auto narrow = static_cast<float>(factor);
  if (dtype == DType::kFloat64) {
    scalar.f64 = factor;
  } else if (dtype == DType::kFloat32) {
    scalar.f32 = narrow;
    kept = static_cast<double>(narrow);
  } else if (dtype == DType::kFloat16) {
    scalar.f16 = float_to_float16(narrow);
    kept = static_cast<double>(float16_to_float(scalar.f16));
  } else if (dtype == DType::kBfloat16) {
    scalar.f16 = float_to_bfloat16(narrow);
    kept = static_cast<double>(bfloat16_to_float(scalar.f16));
  } else {
    return {};
  }
  const double digits = dtype == DType::kBfloat16 ? 0x1p-8 : 0x1p-11;
  if (!std::isfinite(kept) || std::abs(kept - factor) > digits * std::abs(factor)) return {};
  return scalar;
}

void rest(Nanos waited) {
  // Most waits take microseconds; longer ones are not urgent.
  const Nanos pause = waited < kMillisecond ? 20 * kMicrosecond : kMillisecond;
  const timespec time{0, static_cast<long>(pause)};
  nanosleep(&time, nullptr);
}

/// Why these members cannot use NCCL together; the same on all of them. Collective.
std::string disagreement(Communicator& control, const NcclLibrary& library, const Device& device,
                         bool share_gpu) {
  std::int64_t uuid[2];
  static_assert(sizeof uuid == sizeof(CudaUuid));
  std::memcpy(uuid, &device.uuid(), sizeof uuid);
  const auto all = control.exchange({library.version(), uuid[0], uuid[1], share_gpu ? 1 : 0});
  const auto members = all.size() / 4;
  const auto version_of = [&](std::size_t member) { return static_cast<int>(all[4 * member]); };
  for (std::size_t member = 1; member < members; ++member) {
    if (version_of(member) != version_of(0)) {
      return "member 0 has NCCL " + nccl_version_text(version_of(0)) + ", member " +
             std::to_string(member) + " NCCL " + nccl_version_text(version_of(member)) +
             ": all must have the same (HVDTUNE_NCCL_LIBRARY names the library)";
    }
  }
  for (std::size_t later = 1; later < members; ++later) {
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      if (!std::equal(&all[4 * later + 1], &all[4 * later + 3], &all[4 * earlier + 1])) continue;
      const std::string both = "members " + std::to_string(earlier) + " and " +
                               std::to_string(later) + " are on one GPU (" + device.name() + ")";
      if (version_of(0) < kSharesGpus) {
        return both + ", which NCCL " + nccl_version_text(version_of(0)) +
               " cannot do: give each rank a GPU of its own, or use NCCL 2.30 or later with "
               "--share-gpu";
      }
      if (all[4 * later + 3] == 0 || all[4 * earlier + 3] == 0) {
        return both + ": give each rank a GPU of its own, or use --share-gpu";
      }
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<NcclCommunicator> NcclCommunicator::connect(
    Communicator& control, std::shared_ptr<const NcclLibrary> library,
    std::shared_ptr<const Device> device, NcclOptions options) {
  const std::string apart = disagreement(control, *library, *device, options.share_gpu);
  if (!apart.empty()) throw Error(ErrorKind::kInvalidArgument, apart);
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(control, std::move(library), std::move(device), std::move(options)));

  NcclUniqueId id{};
  std::string problem;
  if (made->index_ == 0) {
    try {
      const Device::Current current(*made->device_);
      const NcclResult result = made->library_->ncclGetUniqueId(&id);
      if (result != NcclResult::kSuccess) {
        problem = "NCCL cannot start: " + made->library_->describe(result, nullptr);
      }
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  problem = first_problem(control, problem);
  if (!problem.empty()) throw Error(ErrorKind::kAborted, problem);
  std::vector<std::int64_t> words(sizeof id / sizeof(std::int64_t));
  std::memcpy(words.data(), &id, sizeof id);
  const std::vector<std::int64_t> all = control.exchange(words);
  std::memcpy(&id, all.data(), sizeof id);  // member 0's

  try {
    made->join(id);
  } catch (const Error& error) {
    made->abort();  // the other members wait for this one: NCCL tells some of them
    problem = error.what();
  }
  problem = first_problem(control, problem);
  if (!problem.empty()) throw Error(ErrorKind::kAborted, problem);
  return made;
}

NcclCommunicator::NcclCommunicator(Communicator& control,
                                   std::shared_ptr<const NcclLibrary> library,
                                   std::shared_ptr<const Device> device, NcclOptions options)
    : library_(std::move(library)),
      device_(std::move(device)),
      options_(std::move(options)),
      size_(control.size()),
      index_(control.index()) {}

NcclCommunicator::~NcclCommunicator() {
  try {
    issue("ncclCommFinalize", [&](NcclComm comm) { return library_->ncclCommFinalize(comm); });
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    const Device::Current current(*device_);
    library_->ncclCommDestroy(comm_);
  } catch (const Error&) {
    abort();
  }
}

const char* NcclCommunicator::activity(OpKind kind) const {
  static constexpr Activities kActivities("NCCL");
  return kActivities.of(kind);
}

bool NcclCommunicator::supports(DType dtype, ReduceOp op, double factor) const {
  if (!nccl_type(dtype) || !nccl_op(dtype, op)) return false;
  return factor == 1.0 || (op == ReduceOp::kSum && scalar_of(dtype, factor));
}

void NcclCommunicator::fail(const std::string& why) const { throw Error(ErrorKind::kAborted, why); }

NcclConfig NcclCommunicator::config() const {
  NcclConfig config(library_->version());
  config.blocking = 0;
  if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
  if (options_.min_ctas > 0) {
    config.min_ctas = options_.min_ctas;
    // NCCL would treat "unset" as a number here, and refuses a minimum without a maximum.
    if (options_.max_ctas <= 0) config.max_ctas = kMostCtas;
  }
  if (options_.cga_cluster_size >= 0) config.cga_cluster_size = options_.cga_cluster_size;
  if (options_.cta_policy >= 0) {
    const int since = options_.cta_policy < kZeroCtas ? kNcclHasPolicies : kHasZeroCtas;
    if (library_->version() >= since) {
      config.cta_policy = options_.cta_policy;
    } else {
      HVD_LOG(kWarning) << "NCCL_CTA_POLICY has no effect: NCCL "
                        << nccl_version_text(library_->version()) << " has no such policy, NCCL "
                        << nccl_version_text(since) << " has";
    }
  }
  return config;
}

void NcclCommunicator::join(const NcclUniqueId& id) {
  NcclConfig config = this->config();
  {
    const std::lock_guard lock(mutex_);
    const Device::Current current(*device_);
    const NcclResult result = library_->ncclCommInitRankConfig(&comm_, size_, id, index_, &config);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
      fail("INIT_NCCL failed: " + library_->describe(result, nullptr));
    }
  }
  settle("INIT_NCCL");
}

void NcclCommunicator::issue(const char* what, const Call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) fail(std::string(what) + ": NCCL was aborted");
    const Device::Current current(*device_);
    const NcclResult result = call(comm_);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
      failure_ = std::string(what) + " failed: " + library_->describe(result, comm_);
      fail(failure_);
    }
  }
  settle(what);
}

/// Waits until NCCL accepts the next call, or fails. Some calls return kSuccess while they are
/// still in progress (ncclCommWindowRegister, seen with NCCL 2.31; ncclSend: NVIDIA/nccl issue
/// 1495), so only the communicator's own state counts.
void NcclCommunicator::settle(const char* what) {
  const Nanos began = monotonic_now();
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) fail(std::string(what) + ": NCCL was aborted");
      NcclResult state{};
      const NcclResult asked = library_->ncclCommGetAsyncError(comm_, &state);
      if (asked != NcclResult::kSuccess) state = asked;
      if (state == NcclResult::kSuccess) return;
      if (state != NcclResult::kInProgress) {
        failure_ = std::string(what) + " failed: " + library_->describe(state, comm_);
        fail(failure_);
      }
    }
    if (const auto why = options_.aborted()) fail(*why);
    const Nanos waited = monotonic_now() - began;
    if (waited > options_.timeout) {
      fail(std::string(what) + ": the other members did not come within " +
           std::to_string(options_.timeout / kSecond) + " seconds");
    }
    rest(waited);
  }
}

void NcclCommunicator::reduce(const char* what, DType dtype, ReduceOp op, double factor,
                              const Reduction& call) {
  if (!supports(dtype, op, factor)) {
    throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": NCCL cannot reduce " +
                                                 dtype_name(dtype) + " with operator " +
                                                 std::to_string(static_cast<int>(op)) +
                                                 " and factor " + std::to_string(factor));
  }
  const NcclType type = *nccl_type(dtype);
  NcclOp operation = *nccl_op(dtype, op);
  if (factor == 1.0) {
    issue(what, [&](NcclComm comm) { return call(comm, type, operation); });
    return;
  }
  Scalar scalar = *scalar_of(dtype, factor);
  issue("ncclRedOpCreatePreMulSum", [&](NcclComm comm) {
    return library_->ncclRedOpCreatePreMulSum(&operation, &scalar, type, kNcclScalarHostImmediate,
                                              comm);
  });
  issue(what, [&](NcclComm comm) { return call(comm, type, operation); });
  issue("ncclRedOpDestroy",
        [&](NcclComm comm) { return library_->ncclRedOpDestroy(operation, comm); });
}

namespace {

void* address(CudaPointer pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

void NcclCommunicator::allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                                 ReduceOp op, double factor, CudaStream stream) {
  if (count == 0) return;
  reduce("NCCL_ALLREDUCE", dtype, op, factor, [&](NcclComm comm, NcclType type, NcclOp how) {
    return library_->ncclAllReduce(address(in), address(out), count, type, how, comm, stream);
  });
}

void NcclCommunicator::broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                                 CudaStream stream) {
  if (bytes == 0) return;
  // NCCL requires an address on every member, though it reads only the root's.
  const CudaPointer from = index_ == root ? in : out;
  issue("NCCL_BCAST", [&](NcclComm comm) {
    return library_->ncclBroadcast(address(from), address(out), bytes, NcclType::kUint8, root, comm,
                                   stream);
  });
}

void NcclCommunicator::allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                                 CudaStream stream) {
  if (bytes_each == 0) return;
  issue("NCCL_ALLGATHER", [&](NcclComm comm) {
    return library_->ncclAllGather(address(in), address(out), bytes_each, NcclType::kUint8, comm,
                                   stream);
  });
}

void NcclCommunicator::reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each,
                                     DType dtype, ReduceOp op, double factor, CudaStream stream) {
  if (count_each == 0) return;
  reduce("NCCL_REDUCESCATTER", dtype, op, factor, [&](NcclComm comm, NcclType type, NcclOp how) {
    return library_->ncclReduceScatter(address(in), address(out), count_each, type, how, comm,
                                       stream);
  });
}

void NcclCommunicator::exchange(std::span<const DevicePiece> send,
                                std::span<const DevicePiece> receive, CudaStream stream) {
  const auto self = static_cast<std::size_t>(index_);
  if (send[self].at != receive[self].at) {
    device_->copy(receive[self].at, send[self].at, send[self].bytes, stream);
  }
  const auto part = [&](NcclComm comm, std::size_t member) {
    const auto peer = static_cast<int>(member);
    NcclResult result = NcclResult::kSuccess;
    if (send[member].bytes > 0) {
      result = library_->ncclSend(address(send[member].at), send[member].bytes, NcclType::kUint8,
                                  peer, comm, stream);
    }
    if (result == NcclResult::kSuccess && receive[member].bytes > 0) {
      result = library_->ncclRecv(address(receive[member].at), receive[member].bytes,
                                  NcclType::kUint8, peer, comm, stream);
    }
    return result;
  };
  issue("NCCL_ALLTOALL", [&](NcclComm comm) {
    NcclResult result = library_->ncclGroupStart();
    if (result != NcclResult::kSuccess) return result;
    for (std::size_t member = 0; member < send.size(); ++member) {
      if (member == self) continue;
      const NcclResult given = part(comm, member);
      if (given != NcclResult::kSuccess && given != NcclResult::kInProgress) {
        result = given;
        break;
      }
    }
    const NcclResult ended = library_->ncclGroupEnd();
    return result == NcclResult::kSuccess ? ended : result;
  });
}

void NcclCommunicator::enroll(const DevicePiece& memory) {
  const std::lock_guard lock(mutex_);
  const auto key = std::pair{memory.at, memory.bytes};
  if (comm_ == nullptr || memory.bytes == 0 || enrolled_.contains(key)) return;
  const Device::Current current(*device_);
  void* handle = nullptr;
  const NcclResult result =
      library_->ncclCommRegister(comm_, address(memory.at), memory.bytes, &handle);
  if (result == NcclResult::kSuccess) {
    enrolled_[key] = handle;
  } else {
    HVD_LOG(kDebug) << "ncclCommRegister: " << library_->describe(result, comm_)
                    << "; the buffer is used without it";
  }
}

void NcclCommunicator::enroll_together(const DevicePiece& memory, Communicator& control) {
  const auto all = [&control](bool flag) {
    const auto said = control.exchange({flag ? 1 : 0});
    return std::ranges::find(said, 0) == said.end();
  };
  // Ranks share a GPU only in development: the simplest way is enough.
  const bool offered = library_->ncclCommWindowRegister != nullptr && !options_.share_gpu;
  if (memory.bytes == 0 || !all(offered)) return enroll(memory);
  const bool opened = open_window(memory);
  if (all(opened)) return;
  withdraw(memory);
  enroll(memory);
}

/// Whether NCCL has made a window of the memory: it may refuse, or return none.
bool NcclCommunicator::open_window(const DevicePiece& memory) {
  const auto key = std::pair{memory.at, memory.bytes};
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) fail("ncclCommWindowRegister: NCCL was aborted");
    const Device::Current current(*device_);
    const NcclResult result = library_->ncclCommWindowRegister(
        comm_, address(memory.at), memory.bytes, &windows_[key], kNcclSymmetricWindow);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
      HVD_LOG(kDebug) << "ncclCommWindowRegister: " << library_->describe(result, comm_)
                      << "; the buffer is registered without a window";
      windows_.erase(key);
      return false;
    }
  }
  settle("ncclCommWindowRegister");
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find(key);
  if (found == windows_.end()) fail("ncclCommWindowRegister: NCCL was aborted");
  if (found->second != nullptr) return true;
  windows_.erase(found);
  return false;
}

void NcclCommunicator::withdraw(const DevicePiece& memory) {
  const auto key = std::pair{memory.at, memory.bytes};
  try {
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return;
      const Device::Current current(*device_);
      if (const auto found = enrolled_.find(key); found != enrolled_.end()) {
        library_->ncclCommDeregister(comm_, found->second);
        enrolled_.erase(found);
      }
      if (const auto found = windows_.find(key); found != windows_.end()) {
        library_->ncclCommWindowDeregister(comm_, found->second);
        windows_.erase(found);
      }
    }
    settle("ncclCommWindowDeregister");
  } catch (const Error&) {  // the job or the driver has ended; the next call reports it
  }
}

std::optional<std::string> NcclCommunicator::failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty() && comm_ != nullptr) {
    NcclResult state{};
    const NcclResult asked = library_->ncclCommGetAsyncError(comm_, &state);
    if (asked != NcclResult::kSuccess) state = asked;
    if (state != NcclResult::kSuccess && state != NcclResult::kInProgress) {
      failure_ = "NCCL failed: " + library_->describe(state, comm_);
    }
  }
  if (failure_.empty()) return {};
  return failure_;
}

void NcclCommunicator::abort() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  if (failure_.empty()) failure_ = "NCCL was aborted";
  try {
    const Device::Current current(*device_);
    library_->ncclCommAbort(comm_);
  } catch (const Error&) {  // the driver has ended, and all its work with it
  }
  comm_ = nullptr;
  enrolled_.clear();
  windows_.clear();
}

}  // namespace hvdtune
