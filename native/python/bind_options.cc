#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "engine/engine.h"
#include "python/bindings.h"
#include "transport/arena/arena.h"
#include "transport/meeting/cancellation.h"
#include "transport/meeting/host_id.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// Lets a Ctrl-C end the wait for the other ranks.
void raise_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// A longer time than a hundred years means that, so that it can be added to any time.
Nanos from_seconds(double seconds) {
  constexpr double kLongest = 100.0 * 365 * 86'400;
  return static_cast<Nanos>(std::min(seconds, kLongest) * static_cast<double>(kSecond));
}

Writing writing_named(const std::string& name) {
  if (name == "cached") return Writing::kCached;
  if (name == "streamed") return Writing::kStreamed;
  if (name != "auto") throw std::invalid_argument("writing: auto, cached or streamed");
  return Writing::kMeasured;
}

RecordingOptions make_recording(const py::kwargs& values) {
  const auto number = [&](const char* key) { return values[key].cast<std::int64_t>(); };
  RecordingOptions options;
  options.horovod_format = values["timeline_format"].cast<std::string>() == "horovod";
  options.all_ranks = values["timeline_all_ranks"].cast<bool>();
  options.job = values["timeline_job"].cast<std::string>();
  options.identity = values["timeline_identity"].cast<std::string>();
  options.buffer_bytes = static_cast<std::size_t>(number("timeline_buffer_bytes"));
  options.file_limit = static_cast<std::size_t>(number("timeline_file_limit"));
  options.window = {number("timeline_first_step"), number("timeline_end_step")};
  return options;
}

/// `data_plane`: "" for hvdtune's own (shared memory and sockets), or the name of another one.
void choose_data_plane(EngineOptions& options, const py::kwargs& values) {
  const auto text = [&](const char* key) { return values[key].cast<std::string>(); };
  // Read all fields, so that a missing one is noticed whatever data plane is chosen.
  const std::string name = text("data_plane");
  const std::string problem = text("data_plane_problem");
  const MpiChoice mpi{.library = text("data_plane_library"),
                      .multiple = values["mpi_multiple"].cast<bool>()};
  const GlooChoice gloo{.module = text("data_plane_library"),
                        .interface = text("gloo_interface"),
                        .timeout = from_seconds(values["gloo_timeout_s"].cast<double>())};
  const Hierarchy hierarchy{.allreduce = values["hierarchical_allreduce"].cast<bool>(),
                            .allgather = values["hierarchical_allgather"].cast<bool>()};
  const auto chosen = [&]() -> CommunicatorFactory {
    if (name.empty()) return make_own_communicator;
    if (!problem.empty()) return make_failing_factory(problem);
    if (name == "mpi") return make_mpi_factory(mpi);
    if (name == "gloo") return make_gloo_factory(gloo);
    throw std::invalid_argument("data_plane: nothing, mpi or gloo");
  };
  options.in_shared_memory = name.empty();
  options.settings.hierarchical_allreduce = hierarchy.allreduce;
  options.settings.hierarchical_allgather = hierarchy.allgather;
  // With tuning, these settings may be switched on later.
  const bool tuned = values["watch_steps"].cast<bool>();
  options.data_plane =
      make_hierarchical_factory(tuned ? Hierarchy{true, true} : hierarchy, chosen());
}

DeviceOptions make_device_options(const py::kwargs& values) {
  const auto text = [&](const char* key) { return values[key].cast<std::string>(); };
  DeviceOptions options;
  options.cuda = text("cuda_library");
  options.no_cuda = text("cuda_problem");
  options.nccl = text("nccl_library");
  options.no_nccl = text("nccl_problem");
  options.nvrtc = text("nvrtc_library");
  options.profiler = text("nvtx_library");
  options.min_ctas = values["nccl_min_ctas"].cast<int>();
  options.max_ctas = values["nccl_max_ctas"].cast<int>();
  options.cga_cluster_size = values["nccl_cga_cluster_size"].cast<int>();
  options.cta_policy = values["nccl_cta_policy"].cast<int>();
  options.async_completion = values["async_completion"].cast<bool>();
  options.share_gpu = values["share_gpu"].cast<bool>();
  options.between_by_nccl = values["nccl_between_hosts"].cast<bool>();
  options.tunes_bypass = values["tunes_nccl_bypass"].cast<bool>();
  return options;
}

EngineOptions make_options(const py::kwargs& values) {
  const auto text = [&](const char* key) { return values[key].cast<std::string>(); };
  const auto number = [&](const char* key) { return values[key].cast<std::int64_t>(); };
  const auto real = [&](const char* key) { return values[key].cast<double>(); };
  const auto flag = [&](const char* key) { return values[key].cast<bool>(); };

  EngineOptions options;
  options.meeting.rank = static_cast<int>(number("rank"));
  options.meeting.size = static_cast<int>(number("size"));
  options.meeting.endpoint = text("endpoint");
  options.meeting.secret = text("secret");
  options.meeting.hostname = text("hostname");
  options.meeting.agreement = text("agreement");
  options.meeting.timeout = from_seconds(real("start_timeout_s"));
  options.meeting.on_wait = [cancellation =
                                 values["cancellation"].cast<std::shared_ptr<Cancellation>>()] {
    raise_signals();
    if (cancellation) cancellation->check();
  };
  NetworkOptions network;
  network.host = text("network_host");
  network.port = static_cast<int>(number("network_port"));
  network.secret = text("network_secret");
  network.version = text("version");
  network.interfaces = values["interfaces"].cast<std::vector<std::string>>();
  const std::string salt = text("host_salt");
  if (!network.host.empty()) {
    network.host_id = host_id(salt);
    options.network = std::move(network);
  }
  options.host_fanout = static_cast<int>(number("host_fanout"));
  options.local_size = static_cast<int>(number("local_size"));
  options.coordinator.cache_capacity = static_cast<std::uint32_t>(number("cache_capacity"));
  options.coordinator.disable_group_fusion = flag("disable_group_fusion");
  options.settings.fusion_threshold = number("fusion_threshold");
  options.settings.cycle_time = from_seconds(real("cycle_time_ms") / 1e3);
  options.settings.chunk_size = number("chunk_size");
  options.settings.one_shot_limit = number("one_shot_limit");
  options.settings.nccl_bypass_limit = number("nccl_bypass_limit");
  options.settings.nccl_streams = static_cast<std::int32_t>(number("nccl_streams"));
  options.writing = writing_named(text("writing"));
  options.reduction_threads = static_cast<int>(number("reduction_threads"));
  options.spin = number("spin_us") < 0 ? -1 : number("spin_us") * kMicrosecond;
  options.affinity = static_cast<int>(number("affinity"));
  options.process_sets = values["process_sets"].cast<std::vector<std::vector<int>>>();
  options.timeline = system_path(py::object(values["timeline"]));
  options.timeline_mark_cycles = flag("timeline_mark_cycles");
  options.recording = make_recording(values);
  options.watch_steps = flag("watch_steps");
  options.straggler.share = real("straggler_share");
  options.stall.enabled = flag("stall_enabled");
  options.stall.warning = from_seconds(real("stall_warning_s"));
  options.stall.shutdown = from_seconds(real("stall_shutdown_s"));
  options.gpus = make_device_options(values);
  choose_data_plane(options, values);
  return options;
}

}  // namespace

void bind_options(py::module_& module) {
  py::class_<EngineOptions>(module, "EngineOptions",
                            "The options of an engine; every field is a required keyword.")
      .def(py::init(&make_options));
  module.attr("MAX_RANKS") = kMaxRanks;
  module.attr("MAX_RANKS_PER_HOST") = kMaxRanksPerHost;
  module.attr("MAX_PROCESS_SETS") = kMaxProcessSets;
}

}  // namespace hvdtune::python
