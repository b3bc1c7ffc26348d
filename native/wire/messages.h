#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "wire/request.h"

namespace hvdtune::wire {

/// Number of an agreed description; from the second time on ranks send only this number.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = UINT32_MAX;

/// Number of one submission of one rank, counted from 1.
using Ticket = std::uint64_t;

// ---- from a rank to the coordinator -------------------------------------------------------------

enum class AnnounceType : std::uint8_t {
  kSlot = 1,        ///< ready: the tensor of a slot
  kRequest = 2,     ///< ready: a description the coordinator may not know
  kShutdown = 3,    ///< this rank wants the job to end
  kStackReply = 4,  ///< answer to a stack query
  kTimeline = 5,    ///< this rank wants a recording to begin or to end
};

/// Changes the recording of the job, on all ranks at one place in the schedule.
struct TimelineOrder {
  /// Only ranks send kToggle: the coordinator replaces it by kStart or kStop.
  enum class Action : std::uint8_t { kNothing = 0, kStart = 1, kStop = 2, kToggle = 3 };

  Action action = Action::kNothing;
  std::string path = {};  ///< rank 0's file; the other ranks derive theirs from it
  bool mark_cycles = false;
  std::int64_t first_step = 0;  ///< as capture::Window
  std::int64_t end_step = 0;
  // The coordinator sets the following.
  bool all_ranks = false;       ///< every rank records, not only rank 0
  std::string recording = {};   ///< identifies the files of one recording
  std::string time_space = {};  ///< the namespace of rank 0's clock
  std::string problem = {};     ///< why nothing happens

  bool operator==(const TimelineOrder&) const = default;
};

struct Announce {
  AnnounceType type = AnnounceType::kSlot;
  Slot slot = kNoSlot;             ///< kSlot
  Ticket ticket = 0;               ///< kSlot, kRequest
  Nanos time = 0;                  ///< when the tensor became ready on that rank
  bool registered = false;         ///< kSlot: this rank has published where it is in shared memory
  std::optional<Request> request;  ///< kRequest
  std::uint64_t question = 0;      ///< kStackReply: of which query
  std::string text;                ///< kStackReply
  TimelineOrder timeline;          ///< kTimeline
};

/// The whole announcement of a tensor that has a slot. A rank sends one for every gradient.
struct AnnouncedSlot {
  Slot slot = kNoSlot;
  Ticket ticket = 0;
  Nanos time = 0;
  bool registered = false;  ///< Announce::registered
};

/// The bytes of an AnnouncedSlot, without a string.
struct AnnouncedSlotBytes {
  std::array<char, sizeof(AnnounceType) + sizeof(Slot) + sizeof(Ticket) + sizeof(Nanos) + 1>
      bytes{};

  operator std::string_view() const { return {bytes.data(), bytes.size()}; }  // NOLINT: implicit
};

AnnouncedSlotBytes encode_announce_slot(Slot slot, Ticket ticket, Nanos time,
                                        bool registered = false);
/// `bytes`: such that is_announce_slot() is true. Throws DecodeError.
AnnouncedSlot decode_announce_slot(std::string_view bytes);
std::string encode_announce_request(const Request& request, Ticket ticket, Nanos time);
std::string encode_announce_shutdown();
std::string encode_announce_stack(std::uint64_t question, std::string_view text);
std::string encode_announce_timeline(const TimelineOrder& order);
/// Throws DecodeError.
Announce decode_announce(std::string_view bytes);
/// Whether encode_announce_slot made it.
bool is_announce_slot(std::string_view bytes);

// ---- from the coordinator to every rank, in one order -------------------------------------------

enum class ScheduleType : std::uint8_t {
  kBatch = 1,       ///< execute these tensors now
  kReject = 2,      ///< the ranks disagree about a tensor
  kEvict = 3,       ///< forget a slot
  kSettings = 4,    ///< new settings from here on
  kStackQuery = 5,  ///< one rank shall send its Python stack
  kShutdown = 6,    ///< the job ends here
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,  ///< operations queued in it fail
  kJoined = 9,      ///< all ranks have joined; all contribute their own data again from here on
  kTimeline = 10,   ///< a recording begins or ends here
  kInterrupt = 11,  ///< a rank that is finished with a later batch must check: Engine::interrupt()
};

/// Why a batch was closed: the answer to "why was it this small?".
enum class CloseReason : std::uint8_t {
  kFull = 0,      ///< the fusion threshold was reached
  kCycle = 1,     ///< the cycle time was over
  kBlocked = 2,   ///< a rank was blocked, waiting for one of its tensors
  kStepDone = 3,  ///< all tensors of the step were there
  kEnd = 4,       ///< shutdown
};

/// Slots that one BatchEntry can stand for.
inline constexpr std::uint32_t kMaxRun = 1U << 16;

/// One operation of a batch, or several in consecutive slots. It has a name only if some ranks may
/// not know the slot yet, and a description only if a rank that has joined must contribute zeros to
/// it.
struct BatchEntry {
  Slot slot = kNoSlot;
  std::string name;
  std::optional<Request> description;
  /// Number of slots from `slot` on; more than 1 only without name and description.
  std::uint32_t run = 1;
};

/// Settings that may change while running. Numbered: every rank applies an epoch at the same
/// place in the schedule.
struct RuntimeSettings {
  std::uint64_t epoch = 0;
  std::int64_t fusion_threshold = 128LL << 20;  ///< bytes; 0 = no fusion
  Nanos cycle_time = kMillisecond;
  std::int64_t chunk_size = 0;      ///< bytes; 0 = chosen by the engine
  std::int64_t one_shot_limit = 0;  ///< bytes; 0 = chosen by the engine
  /// Bytes of the largest batch on GPUs that bypasses NCCL; 0 = none does.
  std::int64_t nccl_bypass_limit = 0;
  /// Reduce within each host first, if the ranks are on several hosts; see Hierarchy.
  bool hierarchical_allreduce = false;
  bool hierarchical_allgather = false;
  std::int32_t nccl_streams = 1;  ///< batches on GPUs that run in parallel

  bool operator==(const RuntimeSettings&) const = default;
};

struct Schedule {
  ScheduleType type = ScheduleType::kBatch;
  std::uint32_t process_set = 0;  ///< kBatch, kReject, kAddProcessSet, kRemoveProcessSet
  std::uint64_t batch = 0;        ///< kBatch: serial number
  CloseReason reason{};           ///< kBatch
  bool registered = false;        ///< kBatch: all ranks have its tensors in shared memory
  /// kBatch; exactly one for kReject and kEvict, and for the types that ranks wait for by name:
  /// kJoined, kAddProcessSet, kRemoveProcessSet.
  std::vector<BatchEntry> entries;
  Status status;             ///< kReject, kShutdown
  RuntimeSettings settings;  ///< kSettings
  /// kStackQuery; kJoined: the last rank to join; kTimeline: the rank that asked for it, -1 if none
  /// did.
  std::int32_t rank = -1;
  std::uint64_t question = 0;       ///< kStackQuery: repeated in the answer
  std::uint64_t interrupt = 0;      ///< kInterrupt: Engine::interrupt()
  std::vector<std::int32_t> ranks;  ///< kAddProcessSet: global, ascending
  TimelineOrder timeline;           ///< kTimeline

  [[nodiscard]] std::string encode() const;
  /// Throws DecodeError.
  static Schedule decode(std::string_view bytes);
};

}  // namespace hvdtune::wire
