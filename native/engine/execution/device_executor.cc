#include "engine/execution/device_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/threads/at_once.h"
#include "collective/gpu/ipc_communicator.h"
#include "engine/execution/device_tensors.h"
#include "engine/operation/averaging.h"
#include "engine/operation/results.h"

namespace hvdtune {
namespace {

/// A fusion buffer grows to at least this size, so that it grows rarely.
constexpr std::size_t kLeastBuffer = std::size_t{8} << 20;

double total_factor(const wire::Request& request, int members) {
  return request.prescale * total_postscale(request, members);
}

/// Only for a sum is it the same whether the factor is applied before or after the reduction.
bool factors_are_one(const wire::Request& request) {
  return request.prescale == 1.0 && request.postscale == 1.0;
}

/// A batch's name for a profiler: "ALLREDUCE grad.17 and 58 more".
std::string name_of(const DeviceBatch& batch) {
  const wire::Request& head = batch.operations.front()->request;
  std::size_t tensors = 0;
  for (const OperationPtr& operation : batch.operations) {
    tensors += operation->request.tensors.size();
  }
  std::string name = std::string(wire::operation_label(head)) + " " + head.name;
  if (tensors > 1) name += " and " + std::to_string(tensors - 1) + " more";
  return name;
}

std::size_t elements(std::size_t bytes, DType dtype) { return bytes / dtype_size(dtype); }

}  // namespace

/// State that the steps of one launch share.
struct DeviceExecutor::Launch {
  DeviceBatch& batch;
  DeviceCommunicator& exchange;
  Communicator& host;
  DeviceStream& lane;
  const Way& way;
  std::size_t number;  // of the lane
  FusionBuffer& fused;
  bool timed;
  const Profiler* profiler;  // null: none

  [[nodiscard]] const wire::Request& head() const { return batch.operations.front()->request; }
  [[nodiscard]] CudaStream stream() const { return lane.handle(); }
  /// A span for the calls of the communicator, with the timeline's name.
  [[nodiscard]] ProfilerSpan moving() const { return {profiler, exchange.activity(head().kind)}; }
};

DeviceExecutor::DeviceExecutor(Gpus& gpus, const ProcessSets& sets, int rank,
                               std::function<std::optional<std::string>()> aborted)
    : gpus_(gpus), sets_(sets), rank_(rank), aborted_(std::move(aborted)) {}

// ---- choice of the route ------------------------------------------------------------------------

/// Loads NCCL. Returns why there is none on this rank, or an empty text.
std::string DeviceExecutor::open_nccl() {
  if (!gpus_.in_use()) return "this rank has joined, and has had no tensor on a GPU";
  if (nccl_) return {};
  if (gpus_.options().nccl.empty()) return gpus_.options().no_nccl;
  try {
    nccl_ = NcclLibrary::open(gpus_.options().nccl);
  } catch (const Error& error) {
    return error.what();
  }
  open_kernels();
  return {};
}

void DeviceExecutor::open_kernels() {
  std::shared_ptr<const Nvrtc> nvrtc;
  if (!gpus_.options().nvrtc.empty()) {
    try {
      nvrtc = Nvrtc::open(gpus_.options().nvrtc);
    } catch (const Error& error) {
      HVD_LOG_RANK(kInfo, rank_) << error.what();
    }
  }
  kernels_ = std::make_shared<DeviceKernels>(gpus_.in_use(), nvrtc);
  if (!kernels_->compiled()) {
    HVD_LOG_RANK(kInfo, rank_) << "tensors on GPUs are packed by copies: " << kernels_->why_not();
  }
}

/// The same result on all members: they first compare what they have.
DeviceExecutor::Way DeviceExecutor::connect(Communicator& host) {
  std::string problem = open_nccl();
  const std::vector<std::int64_t> all = host.exchange({problem.empty() ? 1 : 0});
  const auto without = std::ranges::find(all, 0);
  if (without != all.end() && problem.empty()) {
    problem = "member " + std::to_string(without - all.begin()) + " of the process set has no NCCL";
  }
  Way way;
  connecting_ = monotonic_now();
  try {
    if (problem.empty()) {
      way.communicators.push_back(connect_by_nccl(host));
      remember(way.communicators.back());
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;  // not all members know it
    problem = error.what();
  }
  connected_ = monotonic_now();
  way.by_nccl = problem.empty();
  uses_nccl_ = uses_nccl_ || way.by_nccl;
  if (!problem.empty()) {
    connecting_ = connected_ = 0;  // there is no NCCL batch to record it
    if (gpus_.options().share_gpu) connect_by_ipc(host, way, problem);
    if (way.communicators.empty()) gpus_.warn_staged(rank_, problem);
  }
  return way;
}

std::unique_ptr<DeviceCommunicator> DeviceExecutor::connect_by_nccl(Communicator& host) {
  const ProfilerSpan span(gpus_.profiler(), "INIT_NCCL");
  NcclOptions options;
  options.min_ctas = gpus_.options().min_ctas;
  options.max_ctas = gpus_.options().max_ctas;
  options.cga_cluster_size = gpus_.options().cga_cluster_size;
  options.cta_policy = gpus_.options().cta_policy;
  options.share_gpu = gpus_.options().share_gpu;
  options.timeout = gpus_.options().timeout;
  options.aborted = aborted_;
  return NcclCommunicator::connect(host, nccl_, gpus_.in_use(), std::move(options));
}

/// Makes a communicator for every stream. If NCCL cannot make more, the set uses the existing ones:
/// all members know it, and more streams would only be faster.
void DeviceExecutor::connect_lanes(Communicator& host, Way& way) {
  if (!way.by_nccl || way.is_complete || way.communicators.size() >= streams_) return;
  if (connecting_ == 0) connecting_ = monotonic_now();
  try {
    while (way.communicators.size() < streams_) {
      way.communicators.push_back(connect_by_nccl(host));
      remember(way.communicators.back());
    }
  } catch (const Error& error) {
    if (aborted_()) throw;
    way.is_complete = true;
    HVD_LOG_RANK(kWarning, rank_) << "batches run on " << way.communicators.size()
                                  << " NCCL streams, not on " << streams_ << ": " << error.what();
  }
  connected_ = monotonic_now();
}

/// If ranks may share a GPU but NCCL does not support it, ranks of one host read each other's
/// memory. The same on all members. `problem`: why there is no NCCL, and afterwards also why this
/// is not possible.
void DeviceExecutor::connect_by_ipc(Communicator& host, Way& way, std::string& problem) {
  const std::vector<std::int64_t> all = host.exchange({gpus_.in_use() ? 1 : 0});
  if (std::ranges::find(all, 0) != all.end()) return;
  if (!kernels_) open_kernels();
  try {
    way.communicators.push_back(
        IpcCommunicator::connect(host, gpus_.in_use(), kernels_, IpcOptions{}));
    remember(way.communicators.back());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;  // not all members know it
    problem += "; " + std::string(error.what());
  }
}

DeviceExecutor::Way& DeviceExecutor::way(std::uint32_t set, Communicator& host) {
  if (ways_.size() <= set) ways_.resize(set + 1);
  if (!ways_[set]) ways_[set] = connect(host);
  connect_lanes(host, *ways_[set]);
  connect_bypasses(*ways_[set], host);
  connect_hierarchies(*ways_[set], host);
  return *ways_[set];
}

bool DeviceExecutor::takes(const std::vector<OperationPtr>& operations, Communicator& host) {
  const wire::Request& head = operations.front()->request;
  const Way& chosen = way(head.process_set, host);
  if (chosen.communicators.empty()) return false;
  if (!traits_of(head.kind).reduces) return true;
  if (head.reduce_op == ReduceOp::kAdasum) return false;
  const ReduceOp op = plain_reduction(head.reduce_op);
  if (op != ReduceOp::kSum && !factors_are_one(head)) return false;
  const double factor = total_factor(head, host.size());
  for (const OperationPtr& operation : operations) {
    for (const wire::TensorSpec& tensor : operation->request.tensors) {
      if (!chosen.communicators.front()->supports(tensor.dtype, op, factor)) return false;
    }
  }
  return true;
}

void DeviceExecutor::remember(const std::shared_ptr<DeviceCommunicator>& communicator) {
  const std::lock_guard lock(connected_mutex_);
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  all_.push_back(communicator);
}

/// In a lane, one communicator's work may be queued behind another's: abort all of them at once,
/// before waiting for any.
void DeviceExecutor::abort() {
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(connected_mutex_);
    for (const auto& one : all_) {
      if (auto communicator = one.lock()) {
        calls.emplace_back([communicator] { communicator->abort(); });
      }
    }
  }
  at_once(calls);
}

void DeviceExecutor::remove_set(std::uint32_t set) {
  if (set >= ways_.size() || !ways_[set]) return;
  const Way& gone = *ways_[set];
  for (std::size_t lane = 0; lane < gone.buffers.size(); ++lane) withdraw(gone, lane);
  ways_[set].reset();
}

void DeviceExecutor::withdraw(const Way& way, std::size_t lane) {
  const DevicePiece piece = way.buffers[lane].piece();
  way.communicators[lane]->withdraw(piece);
  if (lane < way.hierarchies.size() && way.hierarchies[lane]) {
    way.hierarchies[lane]->withdraw(piece);
  }
}

DeviceExecutor::~DeviceExecutor() {
  for (std::uint32_t set = 0; set < ways_.size(); ++set) remove_set(set);
}

// ---- a batch ------------------------------------------------------------------------------------

std::unique_ptr<DeviceBatch> DeviceExecutor::launch(const wire::Schedule& schedule,
                                                    const std::vector<OperationPtr>& operations,
                                                    Communicator& host, bool timed) {
  Way& chosen = way(schedule.process_set, host);
  auto batch = std::make_unique<DeviceBatch>();
  batch->schedule = schedule;
  batch->operations = operations;
  const std::size_t number = schedule.batch % std::min(streams_, chosen.communicators.size());
  batch->exchange = exchange_for(chosen, number, operations, host);
  while (lanes_.size() <= number) lanes_.push_back(std::make_unique<DeviceStream>(gpus_.in_use()));
  if (chosen.buffers.size() <= number) chosen.buffers.resize(number + 1);
  const Profiler* const profiler = gpus_.profiler();
  Launch launch{*batch, *batch->exchange,       host,  *lanes_[number], chosen,
                number, chosen.buffers[number], timed, profiler};
  const std::string name = profiler == nullptr ? std::string() : name_of(*batch);
  const ProfilerSpan span(profiler, name.c_str());
  batch->connecting = std::exchange(connecting_, 0);
  batch->connected = std::exchange(connected_, 0);
  batch->launched = monotonic_now();
  try {
    for (const OperationPtr& operation : operations) {
      if (!operation->on_device) continue;
      operation->on_device->queued.end();
      for (const SharedEvent& ready : operation->on_device->ready) launch.lane.wait(*ready);
    }
    if (timed) {
      batch->begin = gpus_.event(true);
      batch->begin->record(launch.stream());
    }
    enqueue(launch);
    batch->end = gpus_.event(timed);
    batch->end->record(launch.stream());
  } catch (const Error&) {
    abort();  // enqueued work uses tensors that the submitters will soon own again
    throw;
  }
  return batch;
}

void DeviceExecutor::enqueue(Launch& launch) {
  switch (launch.head().kind) {
    case OpKind::kAllreduce:
      return allreduce(launch);
    case OpKind::kAllgather:
      return allgather(launch);
    case OpKind::kBroadcast:
      return broadcast(launch);
    case OpKind::kAlltoall:
      return alltoall(launch);
    case OpKind::kReducescatter:
      return reducescatter(launch);
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      HVD_CHECK(false);  // they have no tensors
  }
}

/// The set's fusion buffer on the lane, which is enrolled with its communicator. The stream's order
/// allows overwriting earlier contents. Grows at the same batch, and to the same length, on all
/// members: they have the same batches of the set, and the same lanes.
CudaPointer DeviceExecutor::buffer(Launch& launch, std::size_t bytes) {
  FusionBuffer& held = launch.fused;
  const std::size_t before = held.piece().bytes;
  if (before >= bytes) return held.piece().at;
  if (before > 0) {
    launch.lane.synchronize();  // earlier batches use it; this happens only a few times
    launch.host.barrier();      // … and earlier batches of other members may read it
    withdraw(launch.way, launch.number);
    held = {};
  }
  const std::size_t wanted = std::max({bytes, 2 * before, kLeastBuffer});
  if (nccl_) {
    held.of_nccl = NcclMemory(nccl_, gpus_.in_use(), wanted);
  } else {
    held.plain = DeviceMemory(gpus_.in_use(), wanted);
  }
  launch.way.communicators[launch.number]->enroll_together(held.piece(), launch.host);
  if (launch.number < launch.way.hierarchies.size() && launch.way.hierarchies[launch.number]) {
    launch.way.hierarchies[launch.number]->enroll(held.piece());
  }
  return held.piece().at;
}

namespace {

/// Records the stream's present position in `event`, if it is needed.
void mark(Gpus& gpus, bool timed, SharedEvent& event, CudaStream stream) {
  if (!timed) return;
  if (!event) event = gpus.event(true);
  event->record(stream);
}

}  // namespace

void DeviceExecutor::pack(const Launch& launch, const std::vector<DevicePiece>& tensors,
                          CudaPointer fused, DType dtype) {
  const ProfilerSpan span(launch.profiler, "MEMCPY_IN_FUSION_BUFFER");
  kernels_->pack(tensors, fused, dtype, 1.0, launch.stream());
}

void DeviceExecutor::unpack(const Launch& launch, CudaPointer fused,
                            const std::vector<DevicePiece>& tensors, DType dtype) {
  const ProfilerSpan span(launch.profiler, "MEMCPY_OUT_FUSION_BUFFER");
  kernels_->unpack(fused, tensors, dtype, 1.0, launch.stream());
}

void DeviceExecutor::allreduce(Launch& launch) {
  const wire::Request& head = launch.head();
  const ReduceOp op = plain_reduction(head.reduce_op);
  const double factor = total_factor(head, launch.host.size());
  for (const DeviceTensors& tensors :
       tensors_by_dtype(launch.batch, gpus_.in_use(), launch.stream())) {
    const DType dtype = tensors.dtype;
    if (tensors.in.size() == 1) {
      const DevicePiece& in = tensors.in.front();
      const ProfilerSpan moving = launch.moving();
      launch.exchange.allreduce(in.at, tensors.out.front().at, elements(in.bytes, dtype), dtype, op,
                                factor, launch.stream());
    } else if (!tensors.in.empty()) {
      // The padding has undefined content, and is ignored.
      const std::size_t granule = launch.exchange.granule();
      const std::size_t packed = elements(packed_bytes(tensors.in), dtype);
      const std::size_t count = (packed + granule - 1) / granule * granule;
      const CudaPointer fused = buffer(launch, count * dtype_size(dtype));
      pack(launch, tensors.in, fused, dtype);
      mark(gpus_, launch.timed, launch.batch.packed, launch.stream());
      {
        const ProfilerSpan moving = launch.moving();
        launch.exchange.allreduce(fused, fused, count, dtype, op, factor, launch.stream());
      }
      mark(gpus_, launch.timed, launch.batch.unpacking, launch.stream());
      unpack(launch, fused, tensors.out, dtype);
    }
  }
}

void DeviceExecutor::broadcast(Launch& launch) {
  const int root = sets_.index_of(launch.head().process_set, launch.head().root);
  const Operation& operation = *launch.batch.operations.front();
  const ProfilerSpan moving = launch.moving();
  for (std::size_t i = 0; i < operation.memory.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(operation.request.tensors[i].bytes());
    if (bytes == 0) continue;
    launch.exchange.broadcast(root, device_address(operation.memory[i].in),
                              device_address(operation.memory[i].out), bytes, launch.stream());
  }
}

void DeviceExecutor::allgather(Launch& launch) {
  std::vector<std::int64_t> mine;
  for (const OperationPtr& operation : launch.batch.operations) {
    for (const wire::TensorSpec& spec : operation->request.tensors) mine.push_back(spec.shape[0]);
  }
  const std::vector<std::int64_t> rows = launch.host.exchange(mine);
  const auto members = static_cast<std::size_t>(launch.host.size());
  std::size_t tensor = 0;
  for (const OperationPtr& operation : launch.batch.operations) {
    for (std::size_t i = 0; i < operation->request.tensors.size(); ++i, ++tensor) {
      const auto unit = static_cast<std::size_t>(row_bytes(operation->request.tensors[i]));
      std::vector<DevicePiece> parts;
      std::int64_t total = 0;
      for (std::size_t m = 0; m < members; ++m) {
        const std::int64_t part = rows[m * mine.size() + tensor];
        parts.push_back({0, static_cast<std::size_t>(part) * unit});
        total += part;
      }
      const CudaPointer out = add_output(*operation, i, total);
      const CudaPointer in = device_address(operation->memory[i].in);
      if (total == 0 || unit == 0) continue;
      place_one_after_the_other(out, parts);
      const ProfilerSpan moving = launch.moving();
      const std::size_t own = parts[static_cast<std::size_t>(launch.host.index())].bytes;
      if (std::ranges::all_of(parts, [own](const auto& part) { return part.bytes == own; })) {
        launch.exchange.allgather(in, out, own, launch.stream());
      } else {
        const std::vector<DevicePiece> to_all(members, DevicePiece{in, own});
        launch.exchange.exchange(to_all, parts, launch.stream());
      }
    }
  }
}

void DeviceExecutor::alltoall(Launch& launch) {
  Operation& operation = *launch.batch.operations.front();
  const wire::TensorSpec& spec = operation.request.tensors.front();
  const auto unit = static_cast<std::size_t>(row_bytes(spec));
  const std::vector<std::int64_t> splits = launch.host.exchange(operation.splits);
  const auto members = static_cast<std::size_t>(launch.host.size());
  const auto self = static_cast<std::size_t>(launch.host.index());
  std::vector<DevicePiece> send;
  std::vector<DevicePiece> receive;
  std::int64_t received = 0;
  for (std::size_t m = 0; m < members; ++m) {
    send.push_back({0, static_cast<std::size_t>(operation.splits[m]) * unit});
    const std::int64_t rows = splits[m * members + self];
    operation.numbers.push_back(rows);
    received += rows;
    receive.push_back({0, static_cast<std::size_t>(rows) * unit});
  }
  place_one_after_the_other(device_address(operation.memory.front().in), send);
  place_one_after_the_other(add_output(operation, 0, received), receive);
  if (unit == 0 || std::ranges::all_of(splits, [](auto rows) { return rows == 0; })) return;
  const ProfilerSpan moving = launch.moving();
  launch.exchange.exchange(send, receive, launch.stream());
}

void DeviceExecutor::reducescatter(Launch& launch) {
  const wire::Request& head = launch.head();
  const ReduceOp op = plain_reduction(head.reduce_op);
  const int members = launch.host.size();
  const double factor = total_factor(head, members);
  const int self = launch.host.index();
  for (const OperationPtr& operation : launch.batch.operations) {
    for (std::size_t i = 0; i < operation->request.tensors.size(); ++i) {
      add_output(*operation, i,
                 scattered_rows(operation->request.tensors[i].shape[0], self, members));
    }
  }
  for (const DeviceShares& shares : shares_by_dtype(launch.batch, members, self)) {
    const DType dtype = shares.dtype;
    std::size_t block = 0;
    for (const auto& of_member : shares.in) block = std::max(block, packed_bytes(of_member));
    if (block == 0) continue;
    if (shares.whole) {
      const ProfilerSpan moving = launch.moving();
      launch.exchange.reducescatter(shares.in.front().front().at, shares.out.front().at,
                                    elements(shares.out.front().bytes, dtype), dtype, op, factor,
                                    launch.stream());
      continue;
    }
    // Shares of equal length, one after the other, and then the result, at the same offset on all
    // members, as windows require.
    const CudaPointer fused = buffer(launch, block * static_cast<std::size_t>(members + 1));
    for (int m = 0; m < members; ++m) {
      pack(launch, shares.in[static_cast<std::size_t>(m)],
           fused + block * static_cast<std::size_t>(m), dtype);
    }
    mark(gpus_, launch.timed, launch.batch.packed, launch.stream());
    const CudaPointer own = fused + block * static_cast<std::size_t>(members);
    {
      const ProfilerSpan moving = launch.moving();
      launch.exchange.reducescatter(fused, own, elements(block, dtype), dtype, op, factor,
                                    launch.stream());
    }
    mark(gpus_, launch.timed, launch.batch.unpacking, launch.stream());
    unpack(launch, own, shares.out, dtype);
  }
}

}  // namespace hvdtune
