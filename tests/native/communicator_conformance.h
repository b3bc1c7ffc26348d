#pragma once

// What every data plane must do, whichever it is. CONFORMS(SomeWorld) in a test file adds these
// tests to it, for the communicators of SomeWorld: a class like World in shm_world.h.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "collective/communicator.h"

namespace hvdtune::testing {

/// One communicator a rank.
class ConformanceWorld {
 public:
  virtual ~ConformanceWorld() = default;
  /// body(rank, communicator) on all ranks at once, or on this process's own.
  virtual void run(const std::function<void(int, Communicator&)>& body) = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// By rank; empty if all ranks are on one.
  [[nodiscard]] virtual std::vector<int> hosts() const = 0;
  /// A number that all ranks see; null if they are threads of this process.
  virtual std::atomic<int>* counter() = 0;
};

template <class World>
concept OnHosts = requires(const World& world) { world.hosts(); };

template <class World>
class Conforming final : public ConformanceWorld {
 public:
  explicit Conforming(int ranks) : world_(ranks) {}

  void run(const std::function<void(int, Communicator&)>& body) override { world_.run(body); }
  [[nodiscard]] int size() const override { return world_.size(); }
  [[nodiscard]] std::vector<int> hosts() const override {
    if constexpr (OnHosts<World>) return world_.hosts();
    return {};
  }
  std::atomic<int>* counter() override {
    if constexpr (requires(World& world) { world.counter(); }) return &world_.counter();
    return nullptr;
  }

 private:
  World world_;
};

using MakeWorld = std::unique_ptr<ConformanceWorld> (*)(int ranks);

/// Adds the tests to those of `file`, over worlds that `make` makes.
struct Conformance {
  Conformance(const char* file, MakeWorld make, bool on_hosts);
};

#define CONFORMS(World)                                                      \
  static const hvdtune::testing::Conformance conforms_##World(               \
      __FILE__,                                                              \
      [](int ranks) -> std::unique_ptr<hvdtune::testing::ConformanceWorld> { \
        return std::make_unique<hvdtune::testing::Conforming<World>>(ranks); \
      },                                                                     \
      hvdtune::testing::OnHosts<World>)

struct Scales {
  double pre = 1.0;
  double post = 1.0;
};

/// All ranks reduce random inputs, into other memory and in place, in pieces that differ between
/// ranks.
void check_allreduce(ConformanceWorld& world, DType dtype, ReduceOp op, std::size_t count,
                     Scales scales);

}  // namespace hvdtune::testing
