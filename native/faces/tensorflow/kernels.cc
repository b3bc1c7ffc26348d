// The kernels of the operations. In graphs, a kernel returns at once unless its operation is the
// only one in flight, and is done when the engine calls back: all ready operations are in flight
// together, in whatever order TensorFlow starts them. In eager mode kernels wait, in the caller's
// thread, which then makes the engine's progress itself.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "faces/places.h"
#include "faces/running_engine.h"
#include "faces/step_ends.h"
#include "faces/tensorflow/call.h"
#include "faces/tensorflow/operation_types.h"

namespace hvdtune::faces::tensorflow {
namespace {

/// Suffix of an operation type's name for eager mode. There, the type is also the node's name.
constexpr std::string_view kEager = "Eager";

// ---- a node's request ---------------------------------------------------------------------------

/// Attributes of a node that is being made.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  std::int64_t integer(const char* name) {
    std::int64_t value = 0;
    tf().OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_);
    status_.check();
    return value;
  }

  double number(const char* name) {
    float value = 0;
    tf().OpKernelConstruction_GetAttrFloat(construction_, name, &value, status_);
    status_.check();
    return value;
  }

  bool flag(const char* name) {
    unsigned char value = 0;
    tf().OpKernelConstruction_GetAttrBool(construction_, name, &value, status_);
    status_.check();
    return value != 0;
  }

  std::string text(const char* name) {
    std::int32_t elements = 0;
    std::int32_t bytes = 0;
    tf().OpKernelConstruction_GetAttrSize(construction_, name, &elements, &bytes, status_);
    status_.check();
    std::string value(static_cast<std::size_t>(bytes > 0 ? bytes : 0), '\0');
    if (value.empty()) return value;
    tf().OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(),
                                            status_);
    status_.check();
    return value;
  }

  std::uint32_t process_set() {
    const std::int64_t set = integer("process_set_id");
    if (set < 0 || set > INT32_MAX) refuse("there is no process set " + std::to_string(set));
    return static_cast<std::uint32_t>(set);
  }

  /// The node's name in its graph; in eager mode the type of the operation.
  std::string node_name() {
    const TF_StringView name = tf().OpKernelConstruction_GetName(construction_);
    return {name.data, name.len};
  }

 private:
  TF_OpKernelConstruction* const construction_;
  TfStatus status_;
};

template <typename Make>
void* created(TF_OpKernelConstruction* construction, Make&& make) {
  try {
    Attributes attributes(construction);
    return make(attributes).release();
  } catch (const Error& error) {
    TfStatus reason;
    reason.set(kInvalidArgument, error.what());
    tf().OpKernelConstruction_Failure(construction, reason);
    return nullptr;
  }
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string type_of(OpKind kind, bool grouped) {
  std::string name = op_kind_lower_name(kind);
  name.front() = *op_kind_name(kind);
  return (grouped ? "HorovodGrouped" : "Horovod") + name;
}

template <OpKind kind, bool grouped, bool eager>
void* create_node(TF_OpKernelConstruction* construction) {
  return created(construction, [](Attributes& attributes) {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->grouped = grouped;
    node->process_set = attributes.process_set();
    if (traits_of(kind).reduces) {
      node->reduce_op = static_cast<ReduceOp>(attributes.integer("reduce_op"));
      node->prescale = attributes.number("prescale_factor");
      node->postscale = attributes.number("postscale_factor");
    }
    if (traits_of(kind).rooted) {
      node->root = static_cast<std::int32_t>(attributes.integer("root_rank"));
    }
    node->type = type_of(kind, grouped);
    node->name = attributes.text("tensor_name");
    if (!eager && node->name.empty()) node->name = attributes.node_name();
    if (attributes.flag("ignore_name_scope")) node->name = last_part(node->name);
    return node;
  });
}

template <typename T>
void delete_object(void* object) {
  delete static_cast<T*>(object);
}

// ---- graphs -------------------------------------------------------------------------------------

// Iterations of a loop that run in parallel have different names, which are reused.
constexpr std::int64_t kNamesOfIterations = 64;

/// The name of a run, the same for the same iteration on all ranks.
std::string name_of_run(const Node& node, TF_OpKernelContext* context) {
  const std::int64_t iteration = tf().GetIterId(context);
  if (iteration <= 0) return node.name;
  return node.name + '#' + std::to_string(iteration % kNamesOfIterations);
}

/// A run of a node in a graph, from its start until TensorFlow knows that it is done.
class Run {
 public:
  Run(const Node& node, TF_OpKernelContext* context, Done done)
      : call_(node, context), done_(std::move(done)) {
    in_flight_.fetch_add(1, std::memory_order_relaxed);
  }

  /// The node's submission.
  Submission submission(Engine& engine, const std::string& name) {
    return call_.submission(engine, name);
  }
  /// Whether no other run is under way.
  [[nodiscard]] static bool alone() { return in_flight_.load(std::memory_order_relaxed) == 1; }
  /// Whether this thread is telling TensorFlow that a run is done. TensorFlow may start the next
  /// kernels in that call: if they waited, a chain would fill the stack, or block the engine.
  [[nodiscard]] static bool ends_here() { return ends_here_; }

  void deliver(Operation& operation) {
    call_.deliver(operation);
    end();
  }
  void fail(const Status& status) {
    call_.fail(status);
    end();
  }

 private:
  /// Afterwards the context must not be used, and the next run of a chain may have begun.
  void end() {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    const bool outer = std::exchange(ends_here_, true);
    done_();
    ends_here_ = outer;
  }

  Call call_;
  Done done_;

  static inline std::atomic<int> in_flight_{0};
  static inline thread_local bool ends_here_ = false;
};

void run_in_graph(void* kernel, TF_OpKernelContext* context,
                  TF_AsyncOpKernelDoneCallback* callback) {
  const Node& node = *static_cast<Node*>(kernel);
  const auto run = std::make_shared<Run>(node, context, take_done(callback));
  Status refused;
  try {
    const std::shared_ptr<Engine> engine = running_engine();
    Submission submission = run->submission(*engine, name_of_run(node, context));
    const OnDone on_done = [run](const OperationPtr& operation) { run->deliver(*operation); };
    // In a chain nothing else is under way, neither here nor on the other ranks. Then this thread
    // of TensorFlow waits for them, for half a millisecond unless it has to execute a batch first:
    // this way the engine's thread need not be woken, nor wake a thread of TensorFlow in turn.
    if (Run::alone() && !Run::ends_here()) {
      engine->submit_blocking(std::move(submission), on_done);
    } else {
      engine->submit(std::move(submission), on_done);
    }
    return;
  } catch (const Error& error) {
    refused = error.status();
  } catch (const std::exception& error) {
    refused = {ErrorKind::kInvalidArgument, error.what()};
  }
  run->fail(refused);
}

// ---- eager mode ---------------------------------------------------------------------------------

void run_at_once(void* kernel, TF_OpKernelContext* context) {
  const Node& node = *static_cast<Node*>(kernel);
  Call call(node, context);
  try {
    const std::shared_ptr<Engine> engine = running_engine();
    // All calls without a name use this one. Two at the same time are refused, because it would be
    // ambiguous which of them another rank means.
    const std::string& name = node.name.empty() ? node.type : node.name;
    const std::int64_t handle = engine->submit_blocking(call.submission(*engine, name));
    engine->wait(handle, kForever);
    call.deliver(*engine->take(handle));
  } catch (const Error& error) {
    call.fail(error.status());
  } catch (const std::exception& error) {
    call.fail({ErrorKind::kInvalidArgument, error.what()});
  }
}

// ---- numbers ------------------------------------------------------------------------------------

template <typename Number>
void put_number(TF_OpKernelContext* context, Number&& number) {
  try {
    const std::int32_t value = number();
    const TfStatus status;
    TF_Tensor* const tensor =
        tf().AllocateOutput(context, 0, kTfInt32, nullptr, 0, sizeof(std::int32_t), status);
    status.check();
    *static_cast<std::int32_t*>(tf().TensorData(tensor)) = value;
    tf().DeleteTensor(tensor);
  } catch (const Error& error) {
    TfStatus reason;
    reason.set(code_of(error.kind()), error.what());
    tf().OpKernelContext_Failure(context, reason);
  }
}

struct Set {
  std::uint32_t id = 0;
};

void* create_set(TF_OpKernelConstruction* construction) {
  return created(construction, [](Attributes& attributes) {
    return std::make_unique<Set>(Set{attributes.process_set()});
  });
}

void* create_nothing(TF_OpKernelConstruction* /*construction*/) { return nullptr; }
void delete_nothing(void* /*kernel*/) {}

template <Place which>
void put_place(void* /*kernel*/, TF_OpKernelContext* context) {
  put_number(context, [] { return place(which); });
}

template <Place which>
void put_place_in_set(void* kernel, TF_OpKernelContext* context) {
  put_number(context, [kernel] { return place(which, static_cast<Set*>(kernel)->id); });
}

void join_at_once(void* /*kernel*/, TF_OpKernelContext* context) {
  put_number(context, [] {
    const std::shared_ptr<Engine> engine = running_engine();
    const std::int64_t handle = engine->join();
    engine->wait(handle, kForever);
    const OperationPtr joined = engine->take(handle);
    if (!joined->status.ok()) throw Error(joined->status);
    return static_cast<std::int32_t>(joined->numbers.front());
  });
}

// ---- ends of steps ------------------------------------------------------------------------------

struct Owner {
  std::int64_t id = 0;
};

void* create_owner(TF_OpKernelConstruction* construction) {
  return created(construction, [](Attributes& attributes) {
    return std::make_unique<Owner>(Owner{attributes.integer("owner")});
  });
}

void end_step_of(void* kernel, TF_OpKernelContext* /*context*/) {
  end_step(static_cast<Owner*>(kernel)->id);
}

// ---- registering --------------------------------------------------------------------------------

void add(const std::string& type, TF_KernelBuilder* builder) {
  const TfStatus status;
  tf().RegisterKernelBuilder(type.c_str(), builder, status);  // which deletes the builder
  status.check();
}

template <OpKind kind, bool grouped = false>
void add_collective(const std::string& type) {
  add(type, tf().NewAsyncKernelBuilder(type.c_str(), "CPU", create_node<kind, grouped, false>,
                                       run_in_graph, delete_object<Node>));
  const std::string eager = type + std::string(kEager);
  add(eager, tf().NewKernelBuilder(eager.c_str(), "CPU", create_node<kind, grouped, true>,
                                   run_at_once, delete_object<Node>));
}

void add_number(const std::string& type, ComputeFunction compute, bool of_set = false) {
  add(type,
      of_set ? tf().NewKernelBuilder(type.c_str(), "CPU", create_set, compute, delete_object<Set>)
             : tf().NewKernelBuilder(type.c_str(), "CPU", create_nothing, compute, delete_nothing));
}

}  // namespace

void register_kernels() {
  add_collective<OpKind::kAllreduce>("HorovodAllreduce");
  add_collective<OpKind::kAllreduce, true>("HorovodGroupedAllreduce");
  add_collective<OpKind::kAllgather>("HorovodAllgather");
  add_collective<OpKind::kAllgather, true>("HorovodGroupedAllgather");
  add_collective<OpKind::kBroadcast>("HorovodBroadcast");
  add_collective<OpKind::kAlltoall>("HorovodAlltoall");
  add_collective<OpKind::kReducescatter>("HorovodReducescatter");
  add_collective<OpKind::kReducescatter, true>("HorovodGroupedReducescatter");
  add_number("HorovodJoin", join_at_once);
  add_number("HorovodSize", put_place_in_set<Place::kSize>, true);
  add_number("HorovodProcessSetIncluded", put_place_in_set<Place::kIncluded>, true);
  add_number("HorovodLocalSize", put_place<Place::kLocalSize>);
  add_number("HorovodRank", put_place<Place::kRank>);
  add_number("HorovodLocalRank", put_place<Place::kLocalRank>);
  add("HorovodEndStep", tf().NewKernelBuilder("HorovodEndStep", "CPU", create_owner, end_step_of,
                                              delete_object<Owner>));
}

}  // namespace hvdtune::faces::tensorflow
