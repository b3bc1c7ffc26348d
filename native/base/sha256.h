#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvdtune {

// SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104), random bytes. With these the ranks of a job prove
// to each other that they know its secret.
//
// Written here because no other implementation is always available: the C and C++ libraries have no
// such hash, the kernel's (AF_ALG) is often disabled in containers, and OpenSSL would be the only
// library that users must install before they can build hvdtune. The ranks hash only messages of a
// few hundred bytes, a few times per connection, so it need not be fast. It has no branch and no
// memory access that depends on the data.

using Digest = std::array<std::uint8_t, 32>;

/// Hashes a message that is added in pieces.
class Sha256 {
 public:
  Sha256& add(std::string_view bytes);
  /// The digest of everything added; call it once.
  Digest finish();

 private:
  void compress(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::uint64_t bytes_ = 0;
};

Digest sha256(std::string_view message);

Digest hmac_sha256(std::string_view key, std::string_view message);

/// Compares in a time that does not reveal where the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// Fills `to` with random bytes that nobody can foresee. Throws Error(kAborted) if the kernel has
/// none to give.
void fill_with_random_bytes(void* to, std::size_t bytes);

/// The bytes of a digest, to be sent or compared.
inline std::string_view view_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace hvdtune
