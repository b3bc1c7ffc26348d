#include "transport/control/bridge_states.h"

#include "transport/arena/arena.h"
#include "wire/codec.h"

namespace hvdtune {
namespace {

enum State : std::uint32_t {
  kJoined,
  kWatched,
  kEnded,
  kStallChecks,
  kEndPosition,
  kRecordingDecided,
};

}  // namespace

std::array<std::uint64_t, kBridgeStates> bridge_states(Arena& arena) {
  return {arena.joined().load(),       arena.watched().load(),
          arena.ended().load(),        arena.stall_checks().load(),
          arena.end_position().load(), arena.recording_decided().load()};
}

void set_bridge_state(Arena& arena, std::uint32_t state, std::uint64_t value) {
  const auto word = static_cast<std::uint32_t>(value);
  switch (state) {
    case kJoined:
      arena.joined().store(word);
      return;
    case kWatched:
      arena.watched().store(word);
      return;
    case kEnded:
      arena.ended().store(word);
      return;
    case kStallChecks:
      arena.stall_checks().store(word);
      return;
    case kEndPosition:
      arena.end_position().store(value);
      return;
    case kRecordingDecided:
      arena.recording_decided().store(word);
      futex_wake(&arena.recording_decided(), kWakeAll);
      return;
    default:
      throw wire::DecodeError("an unknown state");
  }
}

}  // namespace hvdtune
