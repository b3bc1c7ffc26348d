#include "faces/mxnet/push.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "faces/mxnet/names.h"
#include "faces/running_engine.h"

namespace hvdtune::faces::mxnet {
namespace {

// ---- MXNet 1.9.1's interface: include/mxnet/c_api.h, engine.h and ndarray.h ---------------------

struct Context {
  int type;
  int id;
};
constexpr int kCpu = 1;
constexpr int kGpu = 2;
constexpr int kDense = 0;
/// FnProperty: if the inputs are computed, MXNet calls the operation in the thread that pushes it,
/// so no other thread need be woken; otherwise in a worker thread for the CPU, in the order in
/// which inputs are computed.
constexpr int kAsync = 4;

/// MXNet calls it, with an OnComplete, when the dependencies are met.
using Run = void (*)(void* run_context, void* on_complete, void* argument);
using Delete = void (*)(void* argument);

/// CallbackOnComplete: plain data, and may be called in any thread.
struct OnComplete {
  void (*call)(void* engine, void* argument, const void* error);
  void* engine;
  void* argument;

  void operator()(const Status& status) const {
    if (status.ok()) return call(engine, argument, nullptr);
    // A dmlc::Error adds nothing to its base class.
    const std::runtime_error error(status.text);
    call(engine, argument, &error);
  }
};

struct DlTensor {
  void* data;
  int device[2];
  int dimensions;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlManaged {
  DlTensor tensor;
  void* manager;
  void (*let_go)(DlManaged*);
};

/// An NDArray that a function of MXNet returns by value, in more memory than it needs.
struct alignas(std::max_align_t) ReturnedArray {
  ~ReturnedArray() {}  // NOLINT(modernize-use-equals-default): returned in memory, as theirs
  std::array<std::byte, 1024> room;
};

// Result, symbol, parameters. The first are C functions. The methods of NDArray exist only in
// builds with oneDNN; without it, arrays have only one layout.
#define HVDTUNE_MXNET_FUNCTIONS(FUNCTION)                                                    \
  FUNCTION(const char*, MXGetLastError, ())                                                  \
  FUNCTION(int, MXEnginePushAsyncND,                                                         \
           (Run, void* argument, Delete, const Context*, void* const* read, int reads,       \
            void* const* written, int writes, const void* property, int priority,            \
            const char* name, bool wait))                                                    \
  FUNCTION(int, MXNDArrayFree, (void* array))                                                \
  FUNCTION(int, MXShallowCopyNDArray, (void* array, void** copy))                            \
  FUNCTION(int, MXNDArrayGetContext, (void* array, int* type, int* id))                      \
  FUNCTION(int, MXNDArrayGetDType, (void* array, int* type))                                 \
  FUNCTION(int, MXNDArrayGetShapeEx64, (void* array, int* rank, const std::int64_t** shape)) \
  FUNCTION(int, MXNDArrayGetStorageType, (void* array, int* type))                           \
  FUNCTION(int, MXNDArrayToDLPack, (void* array, DlManaged** tensor))

struct Interface {
// NOLINTNEXTLINE(bugprone-macro-parentheses): parts of a declaration
#define HVDTUNE_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  HVDTUNE_MXNET_FUNCTIONS(HVDTUNE_DECLARE)
#undef HVDTUNE_DECLARE
  ReturnedArray (*reordered)(const void* array) = nullptr;
  void (*forget_layout)(void* array) = nullptr;
};

Interface mx;

void check(int code) {
  if (code != 0) throw Error(ErrorKind::kInvalidArgument, mx.MXGetLastError());
}

// ---- arrays -------------------------------------------------------------------------------------

/// By MXNet's number of the type.
constexpr std::array<DType, 8> kTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                         DType::kUint8,   DType::kInt32,   DType::kInt8,
                                         DType::kInt64,   DType::kBool};
constexpr int kMxBfloat16 = 12;

struct FreeHandle {
  void operator()(void* array) const { mx.MXNDArrayFree(array); }
};
using Array = std::unique_ptr<void, FreeHandle>;

Array hold(void* array) {
  void* copy = nullptr;
  check(mx.MXShallowCopyNDArray(array, &copy));
  return Array(copy);
}

/// An NDArray begins with the pointer to the memory that it may share with others.
void* memory_of(void* array) { return *static_cast<void**>(array); }

std::vector<Array> hold(std::span<void* const> arrays) {
  std::vector<Array> held;
  held.reserve(arrays.size());
  for (void* const array : arrays) held.push_back(hold(array));
  return held;
}

wire::TensorSpec describe(void* array, const std::string& name) {
  int storage = kDense;
  check(mx.MXNDArrayGetStorageType(array, &storage));
  if (storage != kDense) {
    refuse("tensor " + name + ": sparse NDArrays cannot be exchanged; give it tostype('default')");
  }
  Context context = {kCpu, 0};
  check(mx.MXNDArrayGetContext(array, &context.type, &context.id));
  if (context.type == kGpu) {
    refuse("tensor " + name +
           ": NDArrays on GPUs cannot be exchanged; give it as_in_context(cpu())");
  }
  int type = -1;
  check(mx.MXNDArrayGetDType(array, &type));
  const bool known = type >= 0 && type < static_cast<int>(kTypes.size());
  if (!known && type != kMxBfloat16) {
    refuse("tensor " + name + ": NDArrays of this type cannot be exchanged");
  }
  int rank = 0;
  const std::int64_t* shape = nullptr;
  check(mx.MXNDArrayGetShapeEx64(array, &rank, &shape));
  return {known ? kTypes[static_cast<std::size_t>(type)] : DType::kBfloat16,
          {shape, shape + std::max(rank, 0)}};
}

/// The values' address, or null if they have one of oneDNN's layouts. Unlike MXNDArrayGetData it
/// never waits: in MXNet's own thread a wait would never end.
void* plain_data(void* array) {
  DlManaged* managed = nullptr;
  if (mx.MXNDArrayToDLPack(array, &managed) != 0) {
    if (mx.reordered != nullptr && mx.forget_layout != nullptr) return nullptr;
    throw Error(ErrorKind::kInvalidArgument, mx.MXGetLastError());
  }
  void* const data = static_cast<std::byte*>(managed->tensor.data) + managed->tensor.byte_offset;
  managed->let_go(managed);
  return data;
}

// ---- one operation ------------------------------------------------------------------------------

/// MXNet deletes it after it was told that the operation is complete.
class Call {
 public:
  Call(wire::Request request, std::span<void* const> inputs, std::span<void* const> outputs)
      : request_(std::move(request)),
        inputs_(hold(inputs)),
        outputs_(std::equal(inputs.begin(), inputs.end(), outputs.begin(), outputs.end())
                     ? std::vector<Array>()
                     : hold(outputs)) {
    in_flight_.fetch_add(1);
  }

  ~Call() { end(); }  // even if MXNet does not run it because an input has failed

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Throws if the name is in flight. `tied`: further arrays for that, see push().
  void take_name(std::span<void* const> tied) {
    if (!request_.cacheable) return;  // automatic names are unique
    std::vector<void*> memory;
    for (const Array& array : inputs_) memory.push_back(memory_of(array.get()));
    for (const Array& array : outputs_) memory.push_back(memory_of(array.get()));
    for (void* const array : tied) memory.push_back(memory_of(array));
    names::enter(request_.name, set_, this, memory);
    name_ = request_.name;
  }

  /// MXNet deletes `call`, whatever happens.
  static void push(Call* call, std::span<void* const> read, std::span<void* const> written,
                   int priority, const char* label) {
    const Context context = {kCpu, 0};
    pushed_ = call;
    const int code = mx.MXEnginePushAsyncND(
        &run, call, [](void* argument) { delete static_cast<Call*>(argument); }, &context,
        read.data(), static_cast<int>(read.size()), written.data(),
        static_cast<int>(written.size()), &kAsync, priority, label, false);
    pushed_ = nullptr;
    check(code);
  }

 private:
  static void run(void* /*run_context*/, void* on_complete, void* call) {
    static_cast<Call*>(call)->submit(*static_cast<OnComplete*>(on_complete));
  }

  /// Afterwards the object may be gone.
  void submit(OnComplete done) {
    Status refused;
    try {
      const std::shared_ptr<Engine> engine = running_engine();
      const OnDone on_done = [this, done](const OperationPtr& operation) {
        end();
        done(operation->status);
      };
      // A program that reads each result before its next operation has only one in flight. Then its
      // own thread waits here; otherwise MXNet would have to wake two other threads.
      if (pushed_ == this && in_flight_.load() == 1) {
        engine->submit_blocking(submission(), on_done);
      } else {
        engine->submit(submission(), on_done);
      }
      return;
    } catch (const Error& error) {
      refused = error.status();
    } catch (const std::exception& error) {
      refused = {ErrorKind::kInvalidArgument, error.what()};
    }
    end();
    done(refused);
  }

  /// Called before anybody can see that the operation is complete and push the next one.
  void end() {
    if (std::exchange(ended_, true)) return;
    if (!name_.empty()) names::leave(name_, set_, this);
    in_flight_.fetch_sub(1);
  }

  Submission submission() {
    Submission submission;
    submission.memory.reserve(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      void* const input = inputs_[i].get();
      const void* source = plain_data(input);
      if (source == nullptr) source = plain_copy(input);
      submission.memory.push_back({source, room_of(outputs_.empty() ? input : outputs_[i].get())});
    }
    submission.request = std::move(request_);
    return submission;
  }

  const void* plain_copy(void* array) {
    copies_.emplace_back(new ReturnedArray(mx.reordered(array)));
    return plain_data(copies_.back().get());
  }

  /// Only this operation uses what it writes.
  static void* room_of(void* array) {
    if (void* const data = plain_data(array)) return data;
    mx.forget_layout(array);
    return plain_data(array);
  }

  wire::Request request_;
  std::vector<Array> inputs_;
  std::vector<Array> outputs_;  // none: the inputs
  std::vector<Array> copies_;
  std::string name_;  // if it has been taken
  std::uint32_t set_ = request_.process_set;
  bool ended_ = false;

  static inline std::atomic<int> in_flight_{0};
  static inline thread_local const Call* pushed_ = nullptr;  // by this thread, just now
};

void run_mark(void* /*run_context*/, void* on_complete, void* /*argument*/) {
  const OnComplete done = *static_cast<OnComplete*>(on_complete);
  try {
    running_engine()->mark_step();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the job is over, and so are its steps
  }
  done(Status());
}

/// In MXNet, an operation that writes two arrays of the same memory would wait for itself.
void refuse_shared_memory(const std::string& name, std::span<void* const> outputs) {
  std::vector<void*> memory;
  memory.reserve(outputs.size());
  for (void* const array : outputs) memory.push_back(memory_of(array));
  std::sort(memory.begin(), memory.end());
  if (std::adjacent_find(memory.begin(), memory.end()) == memory.end()) return;
  refuse("tensor " + name +
         ": two NDArrays of a group that is changed in place are the same, or parts of one");
}

}  // namespace

void find_c_interface(void* library) {
  Interface found;
  std::string missing;
  const auto look = [&](const char* symbol) {
    void* const address = dlsym(library, symbol);
    if (address == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
    return address;
  };
#define HVDTUNE_FIND(result, name, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(look(#name));
  HVDTUNE_MXNET_FUNCTIONS(HVDTUNE_FIND)
#undef HVDTUNE_FIND
  if (!missing.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "the MXNet that is loaded lacks " + missing);
  }
  found.reordered = reinterpret_cast<decltype(found.reordered)>(
      dlsym(library, "_ZNK5mxnet7NDArray15Reorder2DefaultEv"));
  found.forget_layout = reinterpret_cast<decltype(found.forget_layout)>(
      dlsym(library, "_ZN5mxnet7NDArray20InvalidateMKLDNNDataEv"));
  mx = found;
}

void push(wire::Request request, std::span<void* const> inputs, std::span<void* const> outputs,
          std::span<void* const> tied, int priority) {
  if (inputs.size() != outputs.size()) refuse("as many outputs as inputs are needed");
  for (void* const array : inputs) request.tensors.push_back(describe(array, request.name));
  running_engine()->check(request);
  if (outputs.size() > 1) refuse_shared_memory(request.name, outputs);
  const char* const label = op_kind_name(request.kind);
  auto call = std::make_unique<Call>(std::move(request), inputs, outputs);
  call->take_name(tied);
  const bool in_place = std::equal(inputs.begin(), inputs.end(), outputs.begin());
  Call::push(call.release(), in_place ? std::span<void* const>() : inputs, outputs, priority,
             label);
}

void push_step_mark(std::span<void* const> arrays) {
  const Context context = {kCpu, 0};
  check(mx.MXEnginePushAsyncND(&run_mark, nullptr, nullptr, &context, arrays.data(),
                               static_cast<int>(arrays.size()), nullptr, 0, &kAsync, 0, "step",
                               false));
}

}  // namespace hvdtune::faces::mxnet
