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

/// Gives batches of tensors on GPUs to NCCL: several beside each other, each on a stream of its own
/// (a *lane*), where every process set has a communicator and a fusion buffer. Nothing waits for a
/// GPU, but allreduces within each host first whose shares pass through host memory. One thread at
/// a time, except abort().
class DeviceExecutor {
 public:
  /// `aborted`: why the job is over, if it is; any thread. What is given outlives it.
  DeviceExecutor(Gpus& gpus, const ProcessSets& sets, int rank,
                 std::function<std::optional<std::string>()> aborted);
  /// Nothing is under way, or the job was aborted.
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  /// Batches run beside each other on so many streams, from the next one on: the same on all
  /// members, who change it at the same place in the schedule. Where a set has fewer communicators
  /// its members connect at its next batch; those that are not used any more stay.
  void use_streams(int streams) { streams_ = static_cast<std::size_t>(std::max(streams, 1)); }
  /// Whether a set's batches go by NCCL.
  [[nodiscard]] bool uses_nccl() const { return uses_nccl_; }

  /// Whether launch() takes the batch; the same on all members. Otherwise its tensors must travel
  /// through host memory: there is no NCCL on some member, or NCCL has no such operation. The first
  /// time in a process set its members connect, by way of `host`. Throws Error(kAborted).
  bool takes(const std::vector<OperationPtr>& operations, Communicator& host);

  /// Enqueues a batch that it takes. Lengths that only their senders know go by way of `host`.
  /// `timed`: times_of() is to tell more. Throws Error(kAborted): then nothing of it runs any more.
  std::unique_ptr<DeviceBatch> launch(const wire::Schedule& schedule,
                                      const std::vector<OperationPtr>& operations,
                                      Communicator& host, bool timed);

  /// From the next batch on: bytes of the largest allreduce that goes past NCCL where that can be,
  /// 0 = none. The same on all members, at the same place of the schedule.
  void set_bypass_limit(std::int64_t bytes) { bypass_limit_ = bytes; }
  /// Whether batches of the whole job can go past NCCL; false as long as nobody has asked.
  [[nodiscard]] bool can_bypass() const;

  /// Nothing of the set is under way.
  void remove_set(std::uint32_t set);

  /// The job is over: what is under way ends, and nothing is launched any more. Any thread.
  void abort();

 private:
  struct FusionBuffer {
    NcclMemory of_nccl;
    DeviceMemory plain;  // where there is no NCCL

    [[nodiscard]] DevicePiece piece() const {
      if (plain.bytes() > 0) return {plain.pointer(), plain.bytes()};
      return {of_nccl.pointer(), of_nccl.bytes()};
    }
  };
  /// A process set's way: a communicator for each lane; none: through host memory.
  struct Way {
    std::vector<FusionBuffer> buffers;  ///< by lane, as far as they have been needed
    std::vector<std::shared_ptr<DeviceCommunicator>> communicators;
    /// For short batches, past the communicator of the lane; null: there is none.
    std::vector<std::shared_ptr<BypassCommunicator>> bypasses;
    /// Within each host first; null: that cannot be.
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
  Nanos connecting_ = 0;  // when members began and ended to connect, until a batch tells of it
  Nanos connected_ = 0;
};

}  // namespace hvdtune
