#include "observe/trace/base64.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace hvdtune {
namespace {

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Two digits for every twelve bits: half as many look-ups.
struct Pairs {
  std::array<char, 2 * 4096> text{};

  constexpr Pairs() {
    for (std::size_t bits = 0; bits < 4096; ++bits) {
      text[2 * bits] = kDigits[bits >> 6];
      text[2 * bits + 1] = kDigits[bits & 63];
    }
  }
};
constexpr Pairs kPairs;

void put_pair(char* to, std::uint32_t bits) { std::memcpy(to, kPairs.text.data() + 2 * bits, 2); }

}  // namespace

void append_base64(std::string& out, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  const std::size_t begin = out.size();
  out.resize(begin + (bytes + 2) / 3 * 4);
  char* to = out.data() + begin;
  for (; bytes >= 3; bytes -= 3, from += 3, to += 4) {
    put_pair(to, std::uint32_t{from[0]} << 4 | from[1] >> 4);
    put_pair(to + 2, std::uint32_t{from[1] & 15U} << 8 | from[2]);
  }
  if (bytes == 0) return;
  put_pair(to, std::uint32_t{from[0]} << 4 | (bytes == 2 ? from[1] >> 4 : 0U));
  to[2] = bytes == 2 ? kDigits[(from[1] & 15) << 2] : '=';
  to[3] = '=';
}

}  // namespace hvdtune
