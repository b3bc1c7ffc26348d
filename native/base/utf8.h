#pragma once

#include <cstddef>
#include <string_view>

namespace hvdtune {

/// The beginning of a UTF-8 text: at most `bytes` bytes, and no part of a character at its end,
/// which Python would refuse.
inline std::string_view utf8_prefix(std::string_view text, std::size_t bytes) noexcept {
  if (text.size() <= bytes) return text;
  const auto continues = [text](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  std::size_t end = bytes;
  // A character has up to four bytes; in other text, there may be no first byte to be found.
  while (end > 0 && bytes - end < 3 && continues(end)) --end;
  return {text.data(), end};
}

}  // namespace hvdtune
