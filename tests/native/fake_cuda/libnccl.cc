#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/half.h"
#include "faults.h"
#include "nccl_comm.h"
#include "nccl_reduce.h"
#include "table.h"

// The functions of libnccl.so.2 that hvdtune uses.

using namespace fake_cuda;  // NOLINT: the functions of NCCL have C's names
using namespace hvdtune;    // NOLINT

FAKE_EXPORT CudaResult cuMemAlloc_v2(CudaPointer* pointer, std::size_t bytes);
FAKE_EXPORT CudaResult cuMemFree_v2(CudaPointer pointer);

namespace {

Table<NcclComm, Comm>& comms() {
  static auto* const all = new Table<NcclComm, Comm>;
  return *all;
}

/// What is registered with any communicator: it must not be freed.
struct RegisteredMemory {
  std::mutex mutex;
  std::map<void*, int> count;
};

RegisteredMemory& registered() {
  static auto* const all = new RegisteredMemory;
  return *all;
}

/// Memory of ncclMemAlloc, with its length; and all windows, of whichever communicator.
struct WindowMemory {
  std::mutex mutex;
  std::map<CudaPointer, std::size_t> allocated;
  std::map<CudaPointer, NcclComm> windows;
  std::atomic<int> collectives = 0;  ///< whose data were in windows
};

WindowMemory& window_memory() {
  static auto* const all = new WindowMemory;
  return *all;
}

thread_local std::string last_error_of_thread;

NcclResult refuse(NcclResult result, const std::string& why) {
  last_error_of_thread = why;
  return result;
}

/// A group that this thread has begun: its collectives in order, then one exchange a communicator.
struct Group {
  struct Entry {
    std::shared_ptr<Comm> comm;
    std::shared_ptr<Stream> stream;
    Work work;
  };
  int depth = 0;
  std::vector<Entry> entries;
  NcclResult failed = NcclResult::kSuccess;
};

thread_local Group group;

NcclResult issue(const std::shared_ptr<Comm>& comm, Work work, std::shared_ptr<Stream> stream) {
  if (group.depth == 0) return comm->issue(std::move(work), std::move(stream));
  if (static_cast<Kind>(work.step.kind) == Kind::kExchange) {
    for (Group::Entry& entry : group.entries) {
      if (entry.comm != comm || entry.stream != stream ||
          static_cast<Kind>(entry.work.step.kind) != Kind::kExchange) {
        continue;
      }
      std::ranges::move(work.sends, std::back_inserter(entry.work.sends));
      std::ranges::move(work.receives, std::back_inserter(entry.work.receives));
      return NcclResult::kSuccess;
    }
  }
  group.entries.push_back({comm, std::move(stream), std::move(work)});
  return NcclResult::kSuccess;
}

/// Where an address is in a window of the communicator, counted from 1; 0: in none.
std::uint64_t place_in_window(Comm& comm, CudaPointer at) {
  const std::lock_guard lock(comm.mutex);
  for (const auto& [begin, bytes] : comm.windows) {
    if (at >= begin && at < begin + bytes) return at - begin + 1;
  }
  return 0;
}

struct Range {
  const void* at;
  std::size_t bytes;
};

/// What every collective checks before anything is enqueued.
NcclResult collective(NcclComm handle, CudaStream stream_handle, Work work,
                      const std::vector<Range>& ranges) {
  const auto done = [](NcclResult result) {
    if (group.depth > 0 && result != NcclResult::kSuccess) group.failed = result;
    return result;
  };
  const auto comm = comms().find(handle);
  if (!comm) return done(refuse(NcclResult::kInvalidArgument, "no such communicator"));
  if (const NcclResult ready = comm->ready(); ready != NcclResult::kSuccess) {
    return done(refuse(ready, "the communicator is not ready"));
  }
  if (current_device() != comm->device()) {
    return done(refuse(NcclResult::kInvalidUsage, "another GPU is current"));
  }
  auto stream = stream_of(stream_handle);
  if (!stream) return done(refuse(NcclResult::kInvalidArgument, "no stream of this GPU"));
  for (const Range& range : ranges) {
    const auto at = reinterpret_cast<CudaPointer>(range.at);
    if (memory_of(comm->device(), at, range.bytes) == nullptr) {
      return done(refuse(NcclResult::kInvalidArgument, "not memory of this GPU"));
    }
  }
  work.step.in_window = place_in_window(*comm, work.in);
  work.step.out_window = place_in_window(*comm, work.out);
  if (work.step.in_window > 0 && work.step.out_window > 0) ++window_memory().collectives;
  return done(issue(comm, std::move(work), std::move(stream)));
}

CudaPointer address(const void* at) { return reinterpret_cast<CudaPointer>(at); }

Step step_of(Kind kind, NcclType type, std::size_t count) {
  Step step{};
  step.kind = static_cast<int>(kind);
  step.type = static_cast<int>(type);
  step.count = count;
  step.scalar = 1.0;
  return step;
}

NcclResult add_op(NcclComm handle, NcclOp op, Step& step) {
  step.op = static_cast<int>(op);
  if (step.op <= static_cast<int>(NcclOp::kAvg)) return NcclResult::kSuccess;
  const auto comm = comms().find(handle);
  if (!comm || !comm->scalar_of(op, static_cast<NcclType>(step.type), &step.scalar)) {
    return refuse(NcclResult::kInvalidArgument, "no such operator for this type");
  }
  step.op = static_cast<int>(NcclOp::kSum);
  return NcclResult::kSuccess;
}

}  // namespace

FAKE_EXPORT NcclResult ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("nccl", 23000));
  return NcclResult::kSuccess;
}

FAKE_EXPORT const char* ncclGetErrorString(NcclResult result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  const auto number = static_cast<std::size_t>(result);
  return number < std::size(kTexts) ? kTexts[number] : "unknown result code";
}

FAKE_EXPORT const char* ncclGetLastError(NcclComm handle) {
  const auto comm = comms().find(handle);
  const char* const text = comm ? comm->last_error() : "";
  return *text != '\0' ? text : last_error_of_thread.c_str();
}

FAKE_EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (fault("no-id")) return refuse(NcclResult::kSystemError, "no network interface");
  if (static_cast<long>(comms().size()) >= setting("comms", LONG_MAX)) {
    return refuse(NcclResult::kSystemError, "no memory for a communicator");
  }
  *id = Meeting::create();
  return NcclResult::kSuccess;
}

namespace {

/// What NCCL has against a configuration, or null. It may say nothing that this version does not
/// know; as in NCCL, a least number of thread blocks needs a most.
const char* problem_of(const NcclConfig* config) {
  const long own = setting("nccl", 23000);
  if (config == nullptr || config->magic != 0xcafebeef || config->version < 21400 ||
      config->version > own) {
    return "ncclConfig_t is not initialised";
  }
  const bool has_policies = config->version >= kNcclHasPolicies;
  if (config->size != (has_policies ? sizeof(NcclConfig) : offsetof(NcclConfig, comm_name))) {
    return "the size of ncclConfig_t";
  }
  const auto allowed = [](int ctas) { return ctas == NcclConfig::kUnset || ctas > 0; };
  if (!allowed(config->min_ctas) || !allowed(config->max_ctas) ||
      config->min_ctas > config->max_ctas) {
    return "minCTAs and maxCTAs";
  }
  if (config->cga_cluster_size != NcclConfig::kUnset && config->cga_cluster_size < 0) {
    return "cgaClusterSize";
  }
  const int policies = own >= 22800 ? 3 : 1;
  if (has_policies && config->cta_policy != NcclConfig::kUnset &&
      (config->cta_policy < 0 || config->cta_policy > policies)) {
    return "CTAPolicy";
  }
  return nullptr;
}

std::mutex config_mutex;
NcclConfig last_config(21900);

void note(const NcclConfig& config) {
  NcclConfig copy(static_cast<int>(config.version));
  std::memcpy(&copy, &config, config.size);
  const std::lock_guard lock(config_mutex);
  last_config = copy;
}

}  // namespace

/// For tests: how the last communicator was to be.
FAKE_EXPORT void fake_nccl_config(NcclConfig* config) {
  const std::lock_guard lock(config_mutex);
  *config = last_config;
}

FAKE_EXPORT NcclResult ncclCommInitRankConfig(NcclComm* handle, int size, NcclUniqueId id, int rank,
                                              NcclConfig* config) {
  if (size < 1 || size > kMostMembers || rank < 0 || rank >= size) {
    return refuse(NcclResult::kInvalidArgument, "rank or size");
  }
  if (const char* const problem = problem_of(config); problem != nullptr) {
    return refuse(NcclResult::kInvalidArgument, problem);
  }
  note(*config);
  const int device = current_device();
  if (device < 0) return refuse(NcclResult::kUnhandledCudaError, "no GPU is current");
  const auto comm = std::make_shared<Comm>(size, rank, device, config->blocking != 0);
  *handle = comms().add(comm);
  comm->join(id);
  return comm->blocking() ? comm->state() : NcclResult::kInProgress;
}

FAKE_EXPORT NcclResult ncclCommGetAsyncError(NcclComm handle, NcclResult* result) {
  const auto comm = comms().find(handle);
  if (!comm) return refuse(NcclResult::kInvalidArgument, "no such communicator");
  *result = comm->state();
  return NcclResult::kSuccess;
}

FAKE_EXPORT NcclResult ncclCommFinalize(NcclComm handle) {
  const auto comm = comms().find(handle);
  if (!comm) return refuse(NcclResult::kInvalidArgument, "no such communicator");
  if (const NcclResult ready = comm->ready(); ready != NcclResult::kSuccess) return ready;
  return comm->finalize();
}

namespace {

NcclResult end(NcclComm handle, bool aborts) {
  const auto comm = comms().remove(handle);
  if (!comm) return refuse(NcclResult::kInvalidArgument, "no such communicator");
  if (aborts) comm->abort();
  comm->drain();
  const std::lock_guard lock(comm->mutex);
  const std::lock_guard of_all(registered().mutex);
  for (void* const memory : comm->registered) {
    if (--registered().count[memory] == 0) registered().count.erase(memory);
  }
  const std::lock_guard of_windows(window_memory().mutex);
  std::erase_if(window_memory().windows, [&](const auto& one) { return one.second == handle; });
  return NcclResult::kSuccess;
}

}  // namespace

FAKE_EXPORT NcclResult ncclCommDestroy(NcclComm handle) { return end(handle, false); }

FAKE_EXPORT NcclResult ncclCommAbort(NcclComm handle) { return end(handle, true); }

FAKE_EXPORT NcclResult ncclAllReduce(const void* in, void* out, std::size_t count, NcclType type,
                                     NcclOp op, NcclComm comm, CudaStream stream) {
  const std::size_t bytes = count * nccl_size(type);
  Work work{step_of(Kind::kAllReduce, type, count), address(in), address(out)};
  if (const NcclResult known = add_op(comm, op, work.step); known != NcclResult::kSuccess) {
    return known;
  }
  return collective(comm, stream, std::move(work), {{in, bytes}, {out, bytes}});
}

FAKE_EXPORT NcclResult ncclBroadcast(const void* in, void* out, std::size_t count, NcclType type,
                                     int root, NcclComm comm, CudaStream stream) {
  const std::size_t bytes = count * nccl_size(type);
  Work work{step_of(Kind::kBroadcast, type, count), address(in), address(out)};
  work.step.root = root;
  return collective(comm, stream, std::move(work), {{in, bytes}, {out, bytes}});
}

namespace {

std::size_t members_of(NcclComm handle) {
  const auto comm = comms().find(handle);
  return comm ? static_cast<std::size_t>(comm->size()) : 0;
}

}  // namespace

FAKE_EXPORT NcclResult ncclAllGather(const void* in, void* out, std::size_t count, NcclType type,
                                     NcclComm comm, CudaStream stream) {
  const std::size_t bytes = count * nccl_size(type);
  Work work{step_of(Kind::kAllGather, type, count), address(in), address(out)};
  return collective(comm, stream, std::move(work), {{in, bytes}, {out, bytes * members_of(comm)}});
}

FAKE_EXPORT NcclResult ncclReduceScatter(const void* in, void* out, std::size_t count,
                                         NcclType type, NcclOp op, NcclComm comm,
                                         CudaStream stream) {
  const std::size_t bytes = count * nccl_size(type);
  Work work{step_of(Kind::kReduceScatter, type, count), address(in), address(out)};
  if (const NcclResult known = add_op(comm, op, work.step); known != NcclResult::kSuccess) {
    return known;
  }
  return collective(comm, stream, std::move(work), {{in, bytes * members_of(comm)}, {out, bytes}});
}

FAKE_EXPORT NcclResult ncclSend(const void* in, std::size_t count, NcclType type, int peer,
                                NcclComm comm, CudaStream stream) {
  const std::size_t bytes = count * nccl_size(type);
  Work work{step_of(Kind::kExchange, type, count)};
  work.sends.push_back({peer, address(in), bytes});
  return collective(comm, stream, std::move(work), {{in, bytes}});
}

FAKE_EXPORT NcclResult ncclRecv(void* out, std::size_t count, NcclType type, int peer,
                                NcclComm comm, CudaStream stream) {
  const std::size_t bytes = count * nccl_size(type);
  Work work{step_of(Kind::kExchange, type, count)};
  work.receives.push_back({peer, address(out), bytes});
  return collective(comm, stream, std::move(work), {{out, bytes}});
}

FAKE_EXPORT NcclResult ncclGroupStart() {
  ++group.depth;
  return NcclResult::kSuccess;
}

FAKE_EXPORT NcclResult ncclGroupEnd() {
  if (group.depth == 0) return refuse(NcclResult::kInvalidUsage, "no group was begun");
  if (--group.depth > 0) return NcclResult::kSuccess;
  const auto entries = std::exchange(group.entries, {});
  const NcclResult failed = std::exchange(group.failed, NcclResult::kSuccess);
  if (failed != NcclResult::kSuccess) return failed;
  NcclResult result = NcclResult::kSuccess;
  for (const Group::Entry& entry : entries) {
    const NcclResult issued = entry.comm->issue(entry.work, entry.stream);
    if (issued != NcclResult::kSuccess) result = issued;
  }
  return result;
}

FAKE_EXPORT NcclResult ncclRedOpCreatePreMulSum(NcclOp* op, void* scalar, NcclType type,
                                                int residence, NcclComm handle) {
  const auto comm = comms().find(handle);
  if (!comm || residence != kNcclScalarHostImmediate) return NcclResult::kInvalidArgument;
  if (const NcclResult ready = comm->ready(); ready != NcclResult::kSuccess) return ready;
  double value = 0;
  const auto read = [&](auto sample) {
    std::memcpy(&sample, scalar, sizeof sample);
    return sample;
  };
  switch (type) {
    case NcclType::kFloat16:
      value = static_cast<double>(float16_to_float(read(std::uint16_t{})));
      break;
    case NcclType::kBfloat16:
      value = static_cast<double>(bfloat16_to_float(read(std::uint16_t{})));
      break;
    case NcclType::kFloat32:
      value = static_cast<double>(read(0.0F));
      break;
    case NcclType::kFloat64:
      value = read(0.0);
      break;
    default:
      return refuse(NcclResult::kInvalidArgument, "the fake has no such factor");
  }
  return comm->make_op(op, value, type);
}

FAKE_EXPORT NcclResult ncclRedOpDestroy(NcclOp op, NcclComm handle) {
  const auto comm = comms().find(handle);
  return comm ? comm->destroy_op(op) : NcclResult::kInvalidArgument;
}

FAKE_EXPORT NcclResult ncclMemAlloc(void** memory, std::size_t bytes) {
  CudaPointer pointer = 0;
  if (cuMemAlloc_v2(&pointer, bytes) != CudaResult::kSuccess) {
    return refuse(NcclResult::kUnhandledCudaError, "out of memory");
  }
  *memory = reinterpret_cast<void*>(pointer);
  const std::lock_guard lock(window_memory().mutex);
  window_memory().allocated[pointer] = bytes;
  return NcclResult::kSuccess;
}

FAKE_EXPORT NcclResult ncclMemFree(void* memory) {
  {
    const std::lock_guard lock(registered().mutex);
    if (registered().count.contains(memory)) {
      return refuse(NcclResult::kInvalidUsage, "it is still registered");
    }
    const std::lock_guard of_windows(window_memory().mutex);
    if (window_memory().windows.contains(address(memory))) {
      return refuse(NcclResult::kInvalidUsage, "it is still a window");
    }
    window_memory().allocated.erase(address(memory));
  }
  return cuMemFree_v2(address(memory)) == CudaResult::kSuccess ? NcclResult::kSuccess
                                                               : NcclResult::kInvalidArgument;
}

FAKE_EXPORT NcclResult ncclCommRegister(NcclComm handle, void* memory, std::size_t bytes,
                                        void** registration) {
  const auto comm = comms().find(handle);
  if (!comm) return refuse(NcclResult::kInvalidArgument, "no such communicator");
  if (fault("no-register")) return refuse(NcclResult::kInvalidUsage, "cannot register");
  if (memory_of(comm->device(), address(memory), bytes) == nullptr) {
    return refuse(NcclResult::kInvalidArgument, "not memory of this GPU");
  }
  const std::lock_guard lock(comm->mutex);
  const std::lock_guard of_all(registered().mutex);
  comm->registered.insert(memory);
  ++registered().count[memory];
  *registration = memory;
  return NcclResult::kSuccess;
}

FAKE_EXPORT NcclResult ncclCommDeregister(NcclComm handle, void* registration) {
  const auto comm = comms().find(handle);
  if (!comm) return refuse(NcclResult::kInvalidArgument, "no such communicator");
  const std::lock_guard lock(comm->mutex);
  const std::lock_guard of_all(registered().mutex);
  if (comm->registered.erase(registration) == 0) return NcclResult::kInvalidArgument;
  if (--registered().count[registration] == 0) registered().count.erase(registration);
  return NcclResult::kSuccess;
}

FAKE_EXPORT NcclResult ncclCommWindowRegister(NcclComm handle, void* memory, std::size_t bytes,
                                              NcclWindow* window, int flags) {
  const auto comm = comms().find(handle);
  if (!comm || window == nullptr) return refuse(NcclResult::kInvalidArgument, "what is null");
  if (const NcclResult ready = comm->ready(); ready != NcclResult::kSuccess) return ready;
  if (current_device() != comm->device()) {
    return refuse(NcclResult::kInvalidUsage, "another GPU is current");
  }
  if (fault("no-window")) return refuse(NcclResult::kInvalidUsage, "no windows here");
  const CudaPointer at = address(memory);
  {
    const std::lock_guard lock(window_memory().mutex);
    const auto whole = window_memory().allocated.find(at);
    if (flags != kNcclSymmetricWindow || whole == window_memory().allocated.end() ||
        whole->second < bytes || memory_of(comm->device(), at, bytes) == nullptr) {
      return refuse(NcclResult::kInvalidArgument,
                    "not a symmetric window of ncclMemAlloc's memory");
    }
    if (window_memory().windows.contains(at)) {
      return refuse(NcclResult::kInvalidUsage, "it is a window already");
    }
    if (!fault("null-window")) window_memory().windows[at] = handle;
  }
  *window = nullptr;
  return comm->open_window(bytes, [comm, at, bytes, window] {
    if (fault("null-window")) return;
    const std::lock_guard lock(comm->mutex);
    comm->windows[at] = bytes;
    *window = reinterpret_cast<NcclWindow>(at);
  });
}

FAKE_EXPORT NcclResult ncclCommWindowDeregister(NcclComm handle, NcclWindow window) {
  const auto comm = comms().find(handle);
  if (!comm) return refuse(NcclResult::kInvalidArgument, "no such communicator");
  const auto at = reinterpret_cast<CudaPointer>(window);
  const std::lock_guard lock(comm->mutex);
  if (comm->windows.erase(at) == 0) return refuse(NcclResult::kInvalidArgument, "no such window");
  const std::lock_guard of_all(window_memory().mutex);
  window_memory().windows.erase(at);
  return NcclResult::kSuccess;
}

/// For tests: how many collectives had their data in windows.
FAKE_EXPORT int fake_nccl_in_windows() { return window_memory().collectives; }

/// For tests: how many communicators were ever given something.
FAKE_EXPORT int fake_nccl_used() { return Comm::used; }

/// For tests: communicators that are not destroyed yet.
FAKE_EXPORT int fake_nccl_communicators() { return static_cast<int>(comms().size()); }

/// For tests: communicators that are not destroyed yet, registrations and windows.
FAKE_EXPORT int fake_nccl_live() {
  const std::lock_guard lock(registered().mutex);
  const std::lock_guard of_windows(window_memory().mutex);
  return static_cast<int>(comms().size() + registered().count.size() +
                          window_memory().windows.size());
}
