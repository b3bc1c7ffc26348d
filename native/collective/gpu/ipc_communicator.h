#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collective/communicator.h"
#include "collective/gpu/device_communicator.h"
#include "collective/gpu/peer_buffers.h"
#include "device/ipc.h"
#include "device/kernels/device_kernels.h"

namespace hvdtune {

struct IpcOptions {
  /// Every member has a buffer of two halves of this length, which the others read. A multiple of
  /// 4096; longer messages take several rounds.
  std::size_t window_bytes = std::size_t{4} << 20;
  /// The longest allreduce that every member reduces whole (one round); in a longer one each member
  /// reduces a share, and collects the others' shares (two rounds).
  std::size_t one_shot_limit = std::size_t{256} << 10;
};

/// Ranks of one host that read each other's device memory (CUDA IPC), on one GPU or on several with
/// peer access. Needs no NCCL, and lets ranks share a GPU: no kernel waits for another rank.
///
/// A round: every member copies its part into one half of its buffer and records an event. When all
/// have done so (a barrier of the processes over `control`), every member's stream waits for all
/// events and reads. A half is written again after all have read it. Every member adds in member
/// order.
///
/// Enqueued work waits only for work that other members have enqueued before, so it ends by itself
/// even if a member has stopped participating.
class IpcCommunicator final : public DeviceCommunicator {
 public:
  /// Collective over the members of `control`: at most 16, on one host, each in its own process.
  /// Operations use `control`, so nothing else may use it meanwhile; the destructor does not use
  /// it. Throws Error(kInvalidArgument), the same text on all members, if some cannot read others'
  /// memory or have no kernels; Error(kAborted) if the job is aborted.
  static std::unique_ptr<IpcCommunicator> connect(Communicator& control,
                                                  std::shared_ptr<const Device> device,
                                                  std::shared_ptr<DeviceKernels> kernels,
                                                  IpcOptions options);

  /// Waits until this member and the others have finished reading each other's memory; the others
  /// need not be in their destructors.
  ~IpcCommunicator() override;

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
  void enroll(const DevicePiece&) override {}
  void withdraw(const DevicePiece&) override {}
  [[nodiscard]] std::optional<std::string> failure() const override;
  void abort() override;

 private:
  /// A half of a member's buffer, with its events.
  struct Half {
    std::unique_ptr<PeerEvent> written;  ///< this member's part is in it
    std::unique_ptr<PeerEvent> read;     ///< this member has read all members' halves
  };
  struct Member {
    std::array<Half, 2> halves;
  };

  IpcCommunicator(Communicator& control, std::shared_ptr<const Device> device,
                  std::shared_ptr<DeviceKernels> kernels, IpcOptions options);

  void open();
  void share();
  void begin(CudaStream stream);
  void meet(CudaStream stream);
  void end(CudaStream stream);
  [[nodiscard]] CudaPointer half_of(int member) const;
  [[nodiscard]] std::vector<CudaPointer> halves(std::size_t offset) const;
  void reduce_share(std::size_t count, DType dtype, ReduceOp op, double factor,
                    std::vector<DevicePiece>& shares, CudaStream stream);
  void check_supported(DType dtype, ReduceOp op, double factor) const;
  template <class Body>
  void guarded(const char* what, Body&& body);

  Communicator& control_;
  std::shared_ptr<const Device> device_;
  std::shared_ptr<DeviceKernels> kernels_;
  IpcOptions options_;
  int size_;
  int index_;
  std::optional<PeerBuffers> buffers_;
  std::vector<Member> members_;
  bool connected_ = false;
  std::size_t round_ = 0;
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace hvdtune
