#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvdtune::wire {

// What the ranks of a job tell each other when they meet over a network
// (transport/meeting/rendezvous.h). All decoders throw DecodeError.

/// Version of these messages, and of everything that is sent on the connections afterwards.
inline constexpr std::uint32_t kProtocol = 3;

/// Where a rank listens.
struct Place {
  std::string host;  ///< as a numeric address
  std::int32_t port = 0;
};

std::string encode_places(const std::vector<Place>& places);
std::vector<Place> decode_places(std::string_view bytes);

/// What a connection is for.
enum class Lane : std::uint8_t { kNotices = 0, kData = 1 };

/// The first message of every connection. Protocol and version are the first fields in all
/// protocols.
struct Introduction {
  std::uint32_t protocol = kProtocol;
  std::string version;
  /// The name that rank 0 has given to the meeting; empty if the rank asks to be admitted.
  std::string meeting;
  std::int32_t from = 0;
  std::int32_t to = 0;
  Lane lane = Lane::kNotices;
  // Set by a rank that asks to be admitted:
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::string hostname;
  std::string agreement;

  [[nodiscard]] std::string encode() const;
  /// If the protocol differs, only protocol and version are set.
  static Introduction decode(std::string_view bytes);
};

/// Rank 0's answer to the ranks that asked to be admitted: an error for all, or the list of ranks.
/// Protocol and error are the first fields in all protocols.
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
  /// If the protocol differs, only the error is set; if there is no error either, throws
  /// DecodeError.
  static Directory decode(std::string_view bytes);
};

}  // namespace hvdtune::wire
