#pragma once

// Engines as threads of this process, and the operations that tests give them.

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "threads.h"

namespace hvdtune::testing {

/// Long enough to be an error if it is ever reached.
inline constexpr Nanos kPatience = 60 * kSecond;

inline std::string fresh_endpoint() {
  static std::atomic<int> number{0};
  return "hvdtune-test-" + std::to_string(getpid()) + "-" + std::to_string(number.fetch_add(1));
}

inline EngineOptions options_of(int rank, int size, const std::string& endpoint) {
  EngineOptions options;
  options.meeting.rank = rank;
  options.meeting.size = size;
  options.meeting.endpoint = endpoint;
  options.meeting.hostname = "here";
  options.meeting.secret = "secret";
  options.meeting.timeout = kPatience;
  options.local_size = size;
  options.coordinator.cache_capacity = 1024;
  options.stall.enabled = false;
  return options;
}

/// Waits until another rank's thread has set it; throws Failure if it never does.
inline void await(const std::atomic<bool>& flag) {
  const Nanos deadline = monotonic_now() + kPatience;
  while (!flag) {
    CHECK(monotonic_now() < deadline);
    std::this_thread::yield();
  }
}

using Adjust = std::function<void(EngineOptions&)>;

/// A job whose ranks are threads. The engines are shut down at the end of `body`.
inline void run_job(int size, const std::function<void(int, Engine&)>& body,
                    const Adjust& adjust = {}) {
  const std::string endpoint = fresh_endpoint();
  run_threads(size, [&](int rank) {
    EngineOptions options = options_of(rank, size, endpoint);
    if (adjust) adjust(options);
    Engine engine(std::move(options));
    body(rank, engine);
    engine.shutdown();
  });
}

template <class T>
wire::TensorSpec spec_of(const std::vector<T>& data) {
  const DType dtype = std::is_same_v<T, float>          ? DType::kFloat32
                      : std::is_same_v<T, std::int64_t> ? DType::kInt64
                                                        : DType::kInt32;
  return {dtype, {static_cast<std::int64_t>(data.size())}};
}

/// An operation on `data`, in place.
template <class T>
Submission in_place(OpKind kind, const std::string& name, std::vector<T>& data) {
  Submission submission;
  submission.request.kind = kind;
  submission.request.name = name;
  submission.request.tensors = {spec_of(data)};
  submission.memory = {{data.data(), data.data()}};
  return submission;
}

/// An operation whose result the engine allocates.
template <class T>
Submission allocating(OpKind kind, const std::string& name, std::vector<T>& data) {
  Submission submission = in_place(kind, name, data);
  submission.memory[0].out = nullptr;
  return submission;
}

/// Waits for the operation and returns it; it must have succeeded.
inline OperationPtr finish(Engine& engine, std::int64_t handle) {
  CHECK(engine.wait(handle, monotonic_now() + kPatience));
  OperationPtr operation = engine.take(handle);
  CHECK(operation != nullptr);
  CHECK_MSG(operation->status.ok(), operation->request.name << ": " << operation->status.text);
  return operation;
}

/// Waits for the operation, which must fail; returns why.
inline Status failure(Engine& engine, std::int64_t handle) {
  CHECK(engine.wait(handle, monotonic_now() + kPatience));
  const OperationPtr operation = engine.take(handle);
  CHECK(operation != nullptr);
  CHECK(!operation->status.ok());
  return operation->status;
}

template <class T>
std::vector<T> values_of(const OwnedBuffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), buffer.data(), buffer.bytes());
  return values;
}

inline void check_contains(const std::string& text, const std::string& part) {
  CHECK_MSG(text.find(part) != std::string::npos, "\"" << text << "\" lacks \"" << part << "\"");
}

}  // namespace hvdtune::testing
