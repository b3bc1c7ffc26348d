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
  kRecording,     ///< so many ranks of the host have a recording's file open
  kLeave,         ///< the host needs nothing more
  // From there:
  kSchedule,     ///< bytes of the schedule
  kState,        ///< state word `number` of the arena is `value`
  kReleaseSlot,  ///< slot `number` is another tensor's from here on
  kReleaseSet,   ///< so is process set `number`
  // Both ways:
  kRecordingFailed,
  kMessage,  ///< for the watch of rank `number`, or, to rank 0, from it
};

/// One of them. `bytes` lies where the news was read from.
struct News {
  NewsType type;
  std::uint32_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
};

inline constexpr std::size_t kNewsHeader = 4 + 1 + 4 + 8;
/// Longest bytes of one.
inline constexpr std::size_t kMostNewsBytes = 2 << 20;

/// Appends one to what is to be sent.
void append_news(std::string& out, const News& news);

/// The next one in `stream`, from `at` on, which moves behind it. False when it is not whole yet.
/// Throws DecodeError.
bool take_news(std::string_view stream, std::size_t& at, News& news);

}  // namespace hvdtune::wire
