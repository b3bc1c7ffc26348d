#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "engine/engine.h"
#include "faces/running_engine.h"
#include "python/bindings.h"
#include "python/calls/hot_calls.h"
#include "python/tensors/device_arrays.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

// How long a wait may delay the handling of a Ctrl-C.
constexpr Nanos kSignalSlice = 200 * kMillisecond;

/// (input address, output address or 0, dtype code, shape)
using TensorTuple = std::tuple<std::uintptr_t, std::uintptr_t, int, std::vector<std::int64_t>>;

DType checked_dtype(int code) {
  if (is_valid_dtype(code)) return static_cast<DType>(code);
  throw Error(ErrorKind::kInvalidArgument, "unknown dtype code " + std::to_string(code));
}

std::int64_t submit(Engine& engine, int kind, std::string name,
                    const std::vector<TensorTuple>& tensors, int reduce_op, double prescale,
                    double postscale, int root, std::uint32_t process_set, bool grouped,
                    bool cacheable, std::vector<std::int64_t> splits, std::int32_t device,
                    const std::vector<std::uintptr_t>& streams) {
  Submission submission;
  wire::Request& request = submission.request;
  request.kind = static_cast<OpKind>(kind);
  request.name = std::move(name);
  request.reduce_op = static_cast<ReduceOp>(reduce_op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.root = root;
  request.process_set = process_set;
  request.grouped = grouped;
  request.cacheable = cacheable;
  request.device = device;
  for (const std::uintptr_t stream : streams) {
    submission.streams.push_back(reinterpret_cast<CudaStream>(stream));
  }
  for (const auto& [in, out, dtype, shape] : tensors) {
    request.tensors.push_back({checked_dtype(dtype), shape});
    submission.memory.push_back({reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out)});
  }
  submission.splits = std::move(splits);
  const py::gil_scoped_release release;
  return engine.submit(std::move(submission));
}

/// A Ctrl-C while other ranks do not agree to the end (for example because one is stopped) ends the
/// job without them.
void shutdown(Engine& engine) {
  bool interrupted = false;
  while (!interrupted) {
    {
      const py::gil_scoped_release release;
      if (engine.end_job_by(monotonic_now() + kSignalSlice)) break;
    }
    interrupted = PyErr_CheckSignals() != 0;
  }
  {
    const py::gil_scoped_release release;
    if (interrupted) engine.abort("it was interrupted while shutting down");
    engine.shutdown();
  }
  if (interrupted) throw py::error_already_set();
}

/// NumPy has no bfloat16: its bits are returned as uint16.
py::dtype numpy_dtype(DType dtype) {
  return py::dtype(dtype == DType::kBfloat16 ? "uint16" : dtype_name(dtype));
}

/// The array takes over the buffer, which is empty afterwards.
py::array to_array(OwnedBuffer& buffer, DType dtype) {
  auto kept = std::make_unique<OwnedBuffer>(std::move(buffer));
  const py::capsule owner(kept.get(),
                          [](void* memory) { delete static_cast<OwnedBuffer*>(memory); });
  const OwnedBuffer& result = *kept.release();  // the capsule owns it now
  return py::array(numpy_dtype(dtype), result.shape(), result.data(), owner);
}

py::object results_of(Operation& operation) {
  if (operation.on_device) return results_on_device(operation);
  py::list outputs;
  for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
    outputs.append(to_array(operation.outputs[i], operation.request.tensors[i].dtype));
  }
  return py::make_tuple(outputs, operation.numbers);
}

/// (outputs that the engine allocated, Operation::numbers). Raises the operation's error.
py::object take(Engine& engine, std::int64_t handle) {
  const OperationPtr operation = engine.take(handle);
  if (!operation) return py::none();
  if (!operation->status.ok()) throw Error(operation->status);
  return results_of(*operation);
}

py::list read_steps(Engine& engine, double timeout_s) {
  std::vector<StepRecord> steps;
  {
    const py::gil_scoped_release release;
    const auto timeout = static_cast<Nanos>(timeout_s * static_cast<double>(kSecond));
    steps = engine.steps().read(monotonic_now() + timeout);
  }
  py::list out;
  for (const StepRecord& s : steps) {
    out.append(py::make_tuple(s.index, s.end, s.duration, s.bytes, s.batches, s.tensors, s.epoch,
                              s.named));
  }
  return out;
}

std::uint64_t change_settings(Engine& engine, std::optional<std::int64_t> fusion_threshold,
                              std::optional<double> cycle_time_ms,
                              std::optional<std::int64_t> chunk_size,
                              std::optional<std::int64_t> one_shot_limit,
                              std::optional<bool> hierarchical_allreduce,
                              std::optional<bool> hierarchical_allgather,
                              std::optional<std::int32_t> nccl_streams,
                              std::optional<std::int64_t> nccl_bypass_limit) {
  SettingsChange change;
  change.fusion_threshold = fusion_threshold;
  if (cycle_time_ms) {
    change.cycle_time = static_cast<Nanos>(*cycle_time_ms * static_cast<double>(kMillisecond));
  }
  change.chunk_size = chunk_size;
  change.one_shot_limit = one_shot_limit;
  change.hierarchical_allreduce = hierarchical_allreduce;
  change.hierarchical_allgather = hierarchical_allgather;
  change.nccl_bypass_limit = nccl_bypass_limit;
  change.nccl_streams = nccl_streams;
  const py::gil_scoped_release release;
  return engine.change_settings(change);
}

py::tuple settings(Engine& engine) {
  const wire::RuntimeSettings s = engine.settings();
  return py::make_tuple(s.epoch, s.fusion_threshold,
                        static_cast<double>(s.cycle_time) / static_cast<double>(kMillisecond),
                        s.chunk_size, s.one_shot_limit, s.hierarchical_allreduce,
                        s.hierarchical_allgather, s.nccl_streams, s.nccl_bypass_limit);
}

/// Asks, and waits if requested; returns the problem, if there is one.
std::string ask_timeline(Engine& engine, const wire::TimelineOrder& order, bool waits) {
  std::uint64_t number = 0;
  {
    const py::gil_scoped_release release;
    number = engine.ask_timeline(order);
  }
  while (waits) {
    {
      const py::gil_scoped_release release;
      if (engine.await_timeline(number, monotonic_now() + kSignalSlice)) break;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  return waits ? engine.timeline_problem() : std::string();
}

py::str start_timeline(Engine& engine, const py::object& path, bool mark_cycles,
                       std::int64_t first_step, std::int64_t end_step, bool waits) {
  return python_path(ask_timeline(engine,
                                  {.action = wire::TimelineOrder::Action::kStart,
                                   .path = system_path(path),
                                   .mark_cycles = mark_cycles,
                                   .first_step = first_step,
                                   .end_step = end_step},
                                  waits));
}

void stop_timeline(Engine& engine, bool waits) {
  ask_timeline(engine, {.action = wire::TimelineOrder::Action::kStop}, waits);
}

/// Never waits.
void toggle_timeline(Engine& engine, const py::object& path, bool mark_cycles) {
  wire::TimelineOrder order;
  order.action = wire::TimelineOrder::Action::kToggle;
  order.path = system_path(path);
  order.mark_cycles = mark_cycles;
  ask_timeline(engine, order, false);
}

void mark(Engine& engine, std::uint32_t kind, std::int64_t value, const std::string& text) {
  engine.mark(static_cast<capture::MarkKind>(kind), value, text);
}

bool await_recordings(Engine& engine, double timeout_s) {
  return engine.await_recordings(monotonic_now() +
                                 static_cast<Nanos>(timeout_s * static_cast<double>(kSecond)));
}

void set_stack_source(Engine& engine, const py::function& source) {
  // Never freed: the engine's threads may outlive the interpreter.
  auto* kept = new py::function(source);
  engine.set_stack_source([kept]() -> std::string {
    const py::gil_scoped_acquire acquire;
    try {
      return utf8_text((*kept)());
    } catch (const std::exception& problem) {
      return std::string("no Python stack: ") + problem.what();
    }
  });
}

void serve(Engine& engine, const std::string& name, const std::string& identity,
           const py::function& command) {
  // Never freed, as above.
  auto* kept = new py::function(command);
  const py::gil_scoped_release release;
  engine.serve(name, identity, [kept](std::string_view question) -> std::string {
    const py::gil_scoped_acquire acquire;
    try {
      return utf8_text((*kept)(py::str(question.data(), question.size())));
    } catch (py::error_already_set& problem) {
      throw std::runtime_error(utf8_text(py::str(problem.value())));
    }
  });
}

py::list clock_readings(const Engine& engine, std::size_t skip) {
  py::list out;
  for (const ClockReading& one : engine.clock_readings(skip)) {
    out.append(py::make_tuple(one.local, one.offset, one.bound));
  }
  return out;
}

}  // namespace

void wait(Engine& engine, std::int64_t handle) {
  while (true) {
    {
      const py::gil_scoped_release release;
      if (engine.wait(handle, monotonic_now() + kSignalSlice)) return;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

py::object collect(Engine& engine, std::int64_t handle) {
  if (engine.retire(handle)) return py::none();
  if (!engine.is_done(handle)) {
    wait(engine, handle);
    if (engine.retire(handle)) return py::none();
  }
  const OperationPtr operation = engine.take(handle);
  if (!operation) return py::none();
  if (!operation->status.ok()) throw Error(operation->status);
  const bool brings =
      operation->on_device && (!operation->on_device->outputs.empty() || operation->on_device->end);
  if (!brings && operation->outputs.empty() && operation->numbers.empty()) return py::none();
  return results_of(*operation);
}

void bind_engine(py::module_& module) {
  module.def(
      "array_address",
      [](const py::array& array) { return reinterpret_cast<std::uintptr_t>(array.data()); },
      py::arg("array"), "Address of a NumPy array's first element; much cheaper than ctypes.");
  module.def(
      "result_memory",
      [](std::size_t bytes) {
        OwnedBuffer buffer(bytes, {static_cast<std::int64_t>(bytes)});
        return to_array(buffer, DType::kUint8);
      },
      py::arg("bytes"),
      "Uninitialised memory for a result, as an array of uint8; memory of large results is "
      "reused.");
  module.def("begin_running", &faces::begin_running, py::arg("engine"),
             "The engine that frameworks' threads use from now on, without Python.");
  module.def("end_running", &faces::end_running, py::arg("absence"),
             py::call_guard<py::gil_scoped_release>(),
             "From now on there is no engine; frameworks' calls fail with this sentence.");
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<SharedBlock, std::shared_ptr<SharedBlock>>(
      module, "SharedBlock", py::buffer_protocol(),
      "Bytes that all ranks can read and write, as a buffer; its views keep it alive.")
      .def_buffer([](const SharedBlock& block) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(block.data()),
                               static_cast<py::ssize_t>(block.bytes()));
      })
      .def("__len__", &SharedBlock::bytes);
  py::class_<Engine, std::shared_ptr<Engine>> engine(
      module, "Engine", "One rank's communication engine; see native/engine.");
  bind_hot_calls(module, engine);
  bind_device_arrays(module);
  engine.def(py::init<EngineOptions>(), py::arg("options"), Release())
      .def("submit", &submit, py::arg("kind"), py::arg("name"), py::arg("tensors"),
           py::arg("reduce_op"), py::arg("prescale"), py::arg("postscale"), py::arg("root"),
           py::arg("process_set"), py::arg("grouped"), py::arg("cacheable"), py::arg("splits"),
           py::arg("device") = wire::kOnHost, py::arg("streams") = std::vector<std::uintptr_t>())
      .def("join", &Engine::join, py::arg("device") = wire::kOnHost, Release())
      .def("add_process_set", &Engine::add_process_set, py::arg("ranks"), Release())
      .def("remove_process_set", &Engine::remove_process_set, py::arg("process_set"), Release())
      .def("process_set_ranks", &Engine::process_set_ranks, py::arg("process_set"), Release())
      .def("allocate_shared", &Engine::allocate_shared, py::arg("bytes"), Release())
      .def(
          "device_of", [](Engine& engine, CudaPointer at) { return engine.gpus().device_of(at); },
          py::arg("pointer"), Release())
      .def("device_memory", &device_memory, py::arg("shape"), py::arg("dtype"), py::arg("device"))
      .def("poll", &Engine::poll, py::arg("handle"), Release())
      .def("wait", &wait, py::arg("handle"))
      .def("take", &take, py::arg("handle"))
      .def("shutdown", &shutdown)
      .def("abandon",
           [](const py::object& self) {
             self.cast<Engine&>().abandon();
             self.inc_ref();  // never destroyed: the destructor needs threads that a child does not
                              // have
           })
      .def("peers",
           [](const Engine& engine) {
             py::list peers;
             for (const PeerInfo& p : engine.peers())
               peers.append(py::make_tuple(p.hostname, p.pid));
             return peers;
           })
      .def("host_cpus", &Engine::host_cpus)
      .def("hosts", &Engine::hosts)
      .def("start_timeline", &start_timeline, py::arg("path"), py::arg("mark_cycles"),
           py::arg("first_step"), py::arg("end_step"), py::arg("waits"))
      .def("stop_timeline", &stop_timeline, py::arg("waits"))
      .def("toggle_timeline", &toggle_timeline, py::arg("path"), py::arg("mark_cycles"))
      .def("is_recorded", &Engine::is_recorded)
      .def("recorded_file", [](Engine& engine) { return python_path(engine.recorded_file()); })
      .def("takes_records", &Engine::takes_records)
      .def("mark_step", &Engine::mark_step, Release())
      .def("steps_ended", &Engine::steps_ended)
      .def("mark", &mark, py::arg("kind"), py::arg("value"), py::arg("text"), Release())
      .def("counter", &Engine::counter, py::arg("name"), py::arg("value"), Release())
      .def("await_recordings", &await_recordings, py::arg("timeout_s"), Release())
      .def("recorded",
           [](const Engine& engine) {
             py::list files;
             for (const std::string& file : engine.recorded()) files.append(python_path(file));
             return files;
           })
      .def("set_stack_source", &set_stack_source, py::arg("source"))
      .def("serve", &serve, py::arg("name"), py::arg("identity"), py::arg("command"))
      .def("status", &Engine::status, Release())
      .def("note", &Engine::note, py::arg("key"), py::arg("text"), Release())
      .def("start_clock", &Engine::start_clock, Release())
      .def(
          "stop_clock",
          [](Engine& engine, double timeout_s) {
            const auto timeout = static_cast<Nanos>(timeout_s * static_cast<double>(kSecond));
            return engine.stop_clock(monotonic_now() + timeout);
          },
          py::arg("timeout_s"), Release())
      .def("clock_readings", &clock_readings, py::arg("skip") = 0)
      .def("stop_watching_steps", &Engine::stop_watching_steps, Release())
      .def("read_steps", &read_steps, py::arg("timeout_s"))
      .def("steps_closed", [](Engine& engine) { return engine.steps().closed(); })
      .def("change_settings", &change_settings, py::arg("fusion_threshold") = py::none(),
           py::arg("cycle_time_ms") = py::none(), py::arg("chunk_size") = py::none(),
           py::arg("one_shot_limit") = py::none(), py::arg("hierarchical_allreduce") = py::none(),
           py::arg("hierarchical_allgather") = py::none(), py::arg("nccl_streams") = py::none(),
           py::arg("nccl_bypass_limit") = py::none())
      .def("cancel", &Engine::cancel, py::arg("why"), Release())
      .def("interrupt", &Engine::interrupt, py::arg("number"), Release())
      .def("interrupted", &Engine::interrupted)
      .def("uses_nccl", &Engine::uses_nccl)
      .def("can_bypass_nccl", &Engine::can_bypass_nccl)
      .def("settings", &settings);
}

}  // namespace hvdtune::python
