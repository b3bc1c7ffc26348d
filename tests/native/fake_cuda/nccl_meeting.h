#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "device/nccl_library.h"

namespace fake_cuda {

using hvdtune::NcclOp;
using hvdtune::NcclResult;
using hvdtune::NcclType;
using hvdtune::NcclUniqueId;

inline constexpr int kMostMembers = 16;
inline constexpr std::size_t kWindowBytes = std::size_t{1} << 20;
inline constexpr std::size_t kChannelBytes = std::size_t{64} << 10;

/// What a member does next; all must do the same.
struct Step {
  std::int32_t kind;
  std::int32_t type;
  std::int32_t op;
  std::int32_t root;
  std::uint64_t count;
  double scalar;
  /// Where in a window the data are, counted from 1; 0: in none.
  std::uint64_t in_window;
  std::uint64_t out_window;

  bool operator==(const Step&) const = default;
};

/// From one member to another: bytes in a ring.
struct Channel {
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> read;
  std::byte ring[kChannelBytes];
};

/// What the members of a communicator share: a file in memory that has no name. Whoever knows the
/// unique id finds it among the files of the process that made it. The kernel takes it back with
/// its last member.
class Meeting {
 public:
  struct Member {
    std::atomic<int> pid;
    std::atomic<int> device;
    std::atomic<std::uint64_t> arrived;  ///< at how many barriers
    std::atomic<std::uint64_t> windows;  ///< how many times it came to open one
    std::atomic<std::uint64_t> window_bytes;
    Step step;
  };
  struct Shared {
    std::uint64_t nonce;
    std::atomic<int> joined;
    std::atomic<int> size;
    Member members[kMostMembers];
  };

  /// A new one, which this process keeps open until forget().
  static NcclUniqueId create();
  /// Null and why.
  static std::shared_ptr<Meeting> open(const NcclUniqueId& id, std::string& problem);
  /// All members are there; nobody opens it again.
  static void forget(const NcclUniqueId& id);

  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  [[nodiscard]] Shared& shared() const { return *shared_; }
  [[nodiscard]] std::byte* window(int member) const;
  [[nodiscard]] Channel& channel(int from, int to) const;

 private:
  explicit Meeting(Shared* shared) : shared_(shared) {}

  Shared* shared_;
};

}  // namespace fake_cuda
