#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvdtune::wire {

// What the ranks of a job tell each other when they meet over a network
// (transport/meeting/rendezvous.h). All decoders throw DecodeError.

/// Of these messages, and of everything that travels on the connections afterwards.
inline constexpr std::uint32_t kProtocol = 3;

/// Where a rank listens.
struct Place {
  std::string host;  ///< in digits
  std::int32_t port = 0;
};

std::string encode_places(const std::vector<Place>& places);
std::vector<Place> decode_places(std::string_view bytes);

/// What a connection is for.
enum class Lane : std::uint8_t { kNotices = 0, kData = 1 };

/// The first message of every connection. Protocol and version stay in front in all protocols.
struct Introduction {
  std::uint32_t protocol = kProtocol;
  std::string version;
  /// The name that rank 0 has given to the meeting; empty when a rank comes to take part.
  std::string meeting;
  std::int32_t from = 0;
  std::int32_t to = 0;
  Lane lane = Lane::kNotices;
  // Of who comes to take part:
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::string hostname;
  std::string agreement;

  [[nodiscard]] std::string encode() const;
  /// Of another protocol, only that and the version are set.
  static Introduction decode(std::string_view bytes);
};

/// Rank 0's answer to those who take part: an error for everybody, or who is there. Protocol and
/// error stay in front in all protocols.
struct Directory {
  struct Entry {
    std::string hostname;
    std::int32_t pid = 0;
    std::vector<Place> places;
  };
  std::string error;
  std::string meeting;
  std::vector<Entry> entries;  ///< by rank

  [[nodiscard]] std::string encode() const;
  /// Of another protocol, only the error is set; without one, DecodeError.
  static Directory decode(std::string_view bytes);
};

}  // namespace hvdtune::wire
