#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collective/communicator.h"
#include "collective/gpu/bypass_communicator.h"
#include "collective/gpu/hierarchical_device_communicator.h"
#include "collective/gpu/nccl_communicator.h"
#include "device/kernels/device_kernels.h"
#include "engine/execution/device_batch.h"
#include "engine/execution/gpus.h"
#include "engine/job/process_sets.h"

namespace hvdtune {

/// Gives batches of tensors on GPUs to NCCL: several in parallel, each on its own stream (a
/// *lane*). In each lane, every process set has a communicator and a fusion buffer. Nothing waits
/// for a GPU, except hierarchical allreduces whose shares pass through host memory. One thread at a
/// time, except abort().
class DeviceExecutor {
 public:
  /// `aborted`: why the job is over, if it is; any thread. All references outlive it.
  DeviceExecutor(Gpus& gpus, const ProcessSets& sets, int rank,
                 std::function<std::optional<std::string>()> aborted);
  /// Before this, nothing may be under way, or the job must be aborted.
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  /// From the next batch on, batches run in parallel on `streams` streams. The same on all members,
  /// which change it at the same place in the schedule. If a set has fewer communicators, its
  /// members connect at its next batch; unused communicators are kept.
  void use_streams(int streams) { streams_ = static_cast<std::size_t>(std::max(streams, 1)); }
  /// Whether any set's batches use NCCL.
  [[nodiscard]] bool uses_nccl() const { return uses_nccl_; }

  /// Whether launch() takes the batch; the same on all members. Otherwise its tensors must pass
  /// through host memory: a member has no NCCL, or NCCL has no such operation. At the first call
  /// for a process set its members connect, over `host`. Throws Error(kAborted).
  bool takes(const std::vector<OperationPtr>& operations, Communicator& host);

  /// Enqueues a batch for which takes() is true. Members exchange lengths that only the senders
  /// know over `host`. `timed`: measure all of times_of(). Throws Error(kAborted): then nothing of
  /// the batch runs any more.
  std::unique_ptr<DeviceBatch> launch(const wire::Schedule& schedule,
                                      const std::vector<OperationPtr>& operations,
                                      Communicator& host, bool timed);

  /// From the next batch on: bytes of the largest allreduce that bypasses NCCL if possible, 0 =
  /// none. The same on all members, at the same place in the schedule.
  void set_bypass_limit(std::int64_t bytes) { bypass_limit_ = bytes; }
  /// Whether batches of the whole job can bypass NCCL; false as long as this is not known.
  [[nodiscard]] bool can_bypass() const;

  /// Removes a set; nothing of it may be under way.
  void remove_set(std::uint32_t set);

  /// Ends all work under way, because the job is over; nothing is launched any more. Any thread.
  void abort();

 private:
  struct FusionBuffer {
    NcclMemory of_nccl;
    DeviceMemory plain;  // if there is no NCCL

    [[nodiscard]] DevicePiece piece() const {
      if (plain.bytes() > 0) return {plain.pointer(), plain.bytes()};
      return {of_nccl.pointer(), of_nccl.bytes()};
    }
  };
  /// A process set's route: a communicator for each lane; without any, through host memory.
  struct Way {
    std::vector<FusionBuffer> buffers;  ///< by lane, as far as they have been needed
    std::vector<std::shared_ptr<DeviceCommunicator>> communicators;
    /// For short batches, which bypass the lane's communicator; null: there is none.
    std::vector<std::shared_ptr<BypassCommunicator>> bypasses;
    /// For allreduces within each host first; null: not possible.
    std::vector<std::shared_ptr<HierarchicalDeviceCommunicator>> hierarchies;
    bool by_nccl = false;
    bool is_complete = false;  ///< there can be no further communicator
  };
  struct Launch;

  Way& way(std::uint32_t set, Communicator& host);
  Way connect(Communicator& host);
  void connect_bypasses(Way& way, Communicator& host);
  void connect_hierarchies(Way& way, Communicator& host);
  std::shared_ptr<HierarchicalDeviceCommunicator> connect_hierarchy(
      const std::shared_ptr<DeviceCommunicator>& flat, const HostsFirst& hosts, Communicator& host,
      std::string& problem);
  [[nodiscard]] std::shared_ptr<DeviceCommunicator> exchange_for(
      const Way& way, std::size_t lane, const std::vector<OperationPtr>& operations,
      Communicator& host) const;
  std::unique_ptr<DeviceCommunicator> connect_by_nccl(Communicator& host);
  void connect_lanes(Communicator& host, Way& way);
  void connect_by_ipc(Communicator& host, Way& way, std::string& problem);
  std::string open_nccl();
  void open_kernels();
  void remember(const std::shared_ptr<DeviceCommunicator>& communicator);
  static void withdraw(const Way& way, std::size_t lane);
  CudaPointer buffer(Launch& launch, std::size_t bytes);
  void enqueue(Launch& launch);
  void pack(const Launch& launch, const std::vector<DevicePiece>& tensors, CudaPointer fused,
            DType dtype);
  void unpack(const Launch& launch, CudaPointer fused, const std::vector<DevicePiece>& tensors,
              DType dtype);
  void allreduce(Launch& launch);
  void allgather(Launch& launch);
  void broadcast(Launch& launch);
  void alltoall(Launch& launch);
  void reducescatter(Launch& launch);

  Gpus& gpus_;
  const ProcessSets& sets_;
  const int rank_;
  const std::function<std::optional<std::string>()> aborted_;
  std::mutex connected_mutex_;
  std::vector<std::weak_ptr<DeviceCommunicator>> all_;  // that were ever connected
  std::vector<std::optional<Way>> ways_;                // by process set; none: not known yet
  std::vector<std::unique_ptr<DeviceStream>> lanes_;
  std::shared_ptr<const NcclLibrary> nccl_;
  std::shared_ptr<DeviceKernels> kernels_;
  std::int64_t bypass_limit_ = 0;
  bool told_no_bypass_ = false;
  std::size_t streams_ = 1;
  bool uses_nccl_ = false;
  Nanos connecting_ = 0;  // when members began and ended connecting, until a batch takes it
  Nanos connected_ = 0;
};

}  // namespace hvdtune
