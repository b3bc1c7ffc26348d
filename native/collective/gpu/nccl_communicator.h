#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "collective/communicator.h"
#include "collective/gpu/device_communicator.h"
#include "device/device.h"
#include "device/nccl_library.h"

namespace hvdtune {

struct NcclOptions {
  int min_ctas = 0;           ///< least thread blocks of a collective; 0 = NCCL's choice
  int max_ctas = 0;           ///< most thread blocks of a collective; 0 = NCCL's choice
  int cga_cluster_size = -1;  ///< thread blocks in a cluster; -1 = NCCL's choice
  int cta_policy = -1;        ///< NCCL_CTA_POLICY_*, 0 to 2; -1 = NCCL's choice
  bool share_gpu = false;     ///< members may be on one GPU (NCCL 2.30 or later)
  /// Timeout of connecting, and of every wait for other members.
  Nanos timeout = 60 * kSecond;
  /// Called during every wait: returns why the job is aborted, if it is. Any thread.
  std::function<std::optional<std::string>()> aborted = [] { return std::nullopt; };
};

/// NCCL among the members of a process set.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  /// Collective over the members of `control`, in the same order; nothing else may use `control`
  /// meanwhile. Waits for all; NCCL may take options.timeout. Throws Error(kInvalidArgument), the
  /// same text on all members, if two members are on one GPU or have different versions of NCCL;
  /// Error(kAborted) if NCCL cannot connect them, or the job is aborted.
  static std::unique_ptr<NcclCommunicator> connect(Communicator& control,
                                                   std::shared_ptr<const NcclLibrary> library,
                                                   std::shared_ptr<const Device> device,
                                                   NcclOptions options);

  /// Waits for the enqueued work, for options.timeout at most, and then aborts it.
  ~NcclCommunicator() override;

  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int index() const override { return index_; }
  [[nodiscard]] const char* activity(OpKind kind) const override;
  [[nodiscard]] bool supports(DType dtype, ReduceOp op, double factor) const override;

  void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype, ReduceOp op,
                 double factor, CudaStream stream) override;
  void broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                 CudaStream stream) override;
  void allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                 CudaStream stream) override;
  void reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each, DType dtype,
                     ReduceOp op, double factor, CudaStream stream) override;
  void exchange(std::span<const DevicePiece> send, std::span<const DevicePiece> receive,
                CudaStream stream) override;
  void enroll(const DevicePiece& memory) override;
  /// Registers the memory, from ncclMemAlloc, as a symmetric window if NCCL supports it (2.27 or
  /// later); otherwise like enroll(), on all members. If NCCL refuses at once, that is no error.
  void enroll_together(const DevicePiece& memory, Communicator& control) override;
  void withdraw(const DevicePiece& memory) override;
  [[nodiscard]] std::optional<std::string> failure() const override;
  void abort() override;

 private:
  NcclCommunicator(Communicator& control, std::shared_ptr<const NcclLibrary> library,
                   std::shared_ptr<const Device> device, NcclOptions options);

  using Call = std::function<NcclResult(NcclComm comm)>;
  using Reduction = std::function<NcclResult(NcclComm comm, NcclType type, NcclOp op)>;

  void join(const NcclUniqueId& id);
  [[nodiscard]] NcclConfig config() const;
  bool open_window(const DevicePiece& memory);
  void issue(const char* what, const Call& call);
  void settle(const char* what);
  void reduce(const char* what, DType dtype, ReduceOp op, double factor, const Reduction& call);
  [[noreturn]] void fail(const std::string& why) const;

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<const Device> device_;
  NcclOptions options_;
  int size_;
  int index_;

  /// Guards comm_ and the following members: another thread may call abort() at any time.
  mutable std::mutex mutex_;
  NcclComm comm_ = nullptr;  ///< null: aborted
  mutable std::string failure_;
  std::map<std::pair<CudaPointer, std::size_t>, void*> enrolled_;
  /// NCCL may write a window's handle later; the address of the handle must not change until then.
  std::map<std::pair<CudaPointer, std::size_t>, NcclWindow> windows_;
};

}  // namespace hvdtune
