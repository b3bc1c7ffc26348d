#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "device/device.h"

namespace hvdtune {

using NcclComm = struct NcclCommOpaque*;      ///< ncclComm_t
using NcclWindow = struct NcclWindowOpaque*;  ///< ncclWindow_t

/// ncclResult_t
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// ncclDataType_t
enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

/// ncclRedOp_t; further values are made by ncclRedOpCreatePreMulSum.
enum class NcclOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

/// ncclScalarResidence_t: the scalar is read before the call returns.
inline constexpr int kNcclScalarHostImmediate = 1;

/// NCCL_WIN_COLL_SYMMETRIC: collectives use the window at the same offset on all members.
inline constexpr int kNcclSymmetricWindow = 1;

struct NcclUniqueId {
  char bytes[128];
};

inline constexpr int kOldestNccl = 21900;
/// The first NCCL whose ncclConfig_t has a policy for thread blocks.
inline constexpr int kNcclHasPolicies = 22700;

/// ncclConfig_t as of NCCL 2.27. NCCL only ever appends to it, and accepts an older one, which it
/// recognises by `size` and `version`. kUnset: NCCL's own choice.
struct NcclConfig {
  static constexpr int kUnset = INT_MIN;

  std::size_t size;
  unsigned magic = 0xcafebeef;
  unsigned version;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
  // The members from here on were added after 2.19; 2.27 knows all.
  int traffic_class = kUnset;
  const char* comm_name = nullptr;
  int collnet_enable = kUnset;
  int cta_policy = kUnset;
  int shrink_share = kUnset;
  int nvls_ctas = kUnset;

  /// For a library of `library_version` (2.19 or later): contains only members that it knows. The
  /// members of 2.19 end where `comm_name` begins, because of alignment.
  explicit NcclConfig(int library_version)
      : size(library_version < kNcclHasPolicies ? offsetof(NcclConfig, comm_name)
                                                : sizeof(NcclConfig)),
        version(library_version < kNcclHasPolicies ? kOldestNccl : kNcclHasPolicies) {}
};

/// The functions of libnccl.so.2, found at run time; never unloaded. Members have the names of the
/// documentation. Functions use the calling thread's current GPU.
class NcclLibrary {
 public:
  /// Throws Error(kInvalidArgument), one sentence: no such file, a function that is missing, a
  /// version before 2.19 (which is named).
  static std::shared_ptr<const NcclLibrary> open(const std::string& path);

  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  /// 10000 * major + 100 * minor + patch, e.g. 22707.
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// Describes an error: NCCL's text of `result`, and of the last error of this thread or `comm`.
  [[nodiscard]] std::string describe(NcclResult result, NcclComm comm) const;

  NcclResult (*ncclGetVersion)(int* version);
  const char* (*ncclGetErrorString)(NcclResult result);
  const char* (*ncclGetLastError)(NcclComm comm);
  NcclResult (*ncclGetUniqueId)(NcclUniqueId* id);
  NcclResult (*ncclCommInitRankConfig)(NcclComm* comm, int size, NcclUniqueId id, int rank,
                                       NcclConfig* config);
  NcclResult (*ncclCommGetAsyncError)(NcclComm comm, NcclResult* result);
  NcclResult (*ncclCommFinalize)(NcclComm comm);
  NcclResult (*ncclCommDestroy)(NcclComm comm);
  NcclResult (*ncclCommAbort)(NcclComm comm);

  NcclResult (*ncclAllReduce)(const void* in, void* out, std::size_t count, NcclType type,
                              NcclOp op, NcclComm comm, CudaStream stream);
  NcclResult (*ncclBroadcast)(const void* in, void* out, std::size_t count, NcclType type, int root,
                              NcclComm comm, CudaStream stream);
  NcclResult (*ncclAllGather)(const void* in, void* out, std::size_t count_each, NcclType type,
                              NcclComm comm, CudaStream stream);
  NcclResult (*ncclReduceScatter)(const void* in, void* out, std::size_t count_each, NcclType type,
                                  NcclOp op, NcclComm comm, CudaStream stream);
  NcclResult (*ncclSend)(const void* in, std::size_t count, NcclType type, int peer, NcclComm comm,
                         CudaStream stream);
  NcclResult (*ncclRecv)(void* out, std::size_t count, NcclType type, int peer, NcclComm comm,
                         CudaStream stream);
  NcclResult (*ncclGroupStart)();
  NcclResult (*ncclGroupEnd)();
  NcclResult (*ncclRedOpCreatePreMulSum)(NcclOp* op, void* scalar, NcclType type, int residence,
                                         NcclComm comm);
  NcclResult (*ncclRedOpDestroy)(NcclOp op, NcclComm comm);

  NcclResult (*ncclMemAlloc)(void** memory, std::size_t bytes);
  NcclResult (*ncclMemFree)(void* memory);
  NcclResult (*ncclCommRegister)(NcclComm comm, void* memory, std::size_t bytes, void** handle);
  NcclResult (*ncclCommDeregister)(NcclComm comm, void* handle);

  // From 2.27 on; both null before.
  NcclResult (*ncclCommWindowRegister)(NcclComm comm, void* memory, std::size_t bytes,
                                       NcclWindow* window, int flags) = nullptr;
  NcclResult (*ncclCommWindowDeregister)(NcclComm comm, NcclWindow window) = nullptr;

 private:
  explicit NcclLibrary(const std::string& path);

  std::string path_;
  int version_ = 0;
};

/// "2.27.7" of 22707.
std::string nccl_version_text(int version);

/// Device memory that NCCL can register whole (ncclMemAlloc). Free it only if no enqueued work
/// still uses it, and its registrations are withdrawn.
class NcclMemory {
 public:
  NcclMemory() = default;
  /// Throws Error(kAborted), which names the size, if there is not enough.
  NcclMemory(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<const Device> device,
             std::size_t bytes);
  ~NcclMemory();
  NcclMemory(NcclMemory&& other) noexcept;
  NcclMemory& operator=(NcclMemory&& other) noexcept;

  [[nodiscard]] CudaPointer pointer() const { return reinterpret_cast<CudaPointer>(memory_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<const Device> device_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hvdtune
