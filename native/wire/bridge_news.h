#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvdtune::wire {

// What the bridges of a job's hosts tell each other (transport/control/bridge.h).

enum class NewsType : std::uint8_t {
  // To rank 0's host:
  kAnnounce = 1,  ///< rank `number`: bytes of its ring of announcements
  kBlockedOn,     ///< rank `number`: Doorbell::blocked_on is `value`
  kPosition,      ///< rank `number`: how far it has read the schedule
  kRecording,     ///< `value` ranks of the host have a recording's file open
  kLeave,         ///< the host needs nothing more
  // From there:
  kSchedule,     ///< bytes of the schedule
  kState,        ///< state word `number` of the arena is `value`
  kReleaseSlot,  ///< slot `number` may be given to another tensor from here on
  kReleaseSet,   ///< the same for process set `number`
  // Both ways:
  kRecordingFailed,
  kMessage,  ///< for the watch of rank `number`, or, to rank 0, from it
};

/// One message. `bytes` points into the buffer that the news was read from.
struct News {
  NewsType type;
  std::uint32_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
};

inline constexpr std::size_t kNewsHeader = 4 + 1 + 4 + 8;
/// The longest `bytes` of one message.
inline constexpr std::size_t kMostNewsBytes = 2 << 20;

/// Appends a message to the bytes to send.
void append_news(std::string& out, const News& news);

/// Reads the next message in `stream` from `at` on, and moves `at` past it. False if the message is
/// not complete yet. Throws DecodeError.
bool take_news(std::string_view stream, std::size_t& at, News& news);

}  // namespace hvdtune::wire
