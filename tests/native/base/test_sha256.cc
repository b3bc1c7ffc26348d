// The vectors that FIPS 180-4 (as published by NIST with the standard) and RFC 4231 give.
#include "base/sha256.h"

#include <set>
#include <string>

#include "check.h"

namespace hvdtune::testing::test_sha256 {
namespace {

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

TEST(sha256_of_the_published_messages) {
  CHECK_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(
      hex(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmn"
                 "opqklmnopqrlmnopqrsmnopqrstnopqrstu")),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK_EQ(hex(sha256(std::string(1000000, 'a'))),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/// Lengths around the block and the padding, in pieces of every size.
TEST(pieces_give_the_same_digest_as_the_whole) {
  for (std::size_t length = 0; length <= 130; ++length) {
    std::string message;
    for (std::size_t i = 0; i < length; ++i) message.push_back(static_cast<char>('a' + i % 26));
    const Digest whole = sha256(message);
    for (std::size_t piece = 1; piece <= 65; ++piece) {
      Sha256 hash;
      for (std::size_t at = 0; at < length; at += piece) hash.add(message.substr(at, piece));
      CHECK(hash.finish() == whole);
    }
  }
}

TEST(hmac_of_the_messages_of_rfc_4231) {
  CHECK_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char byte = 1; byte <= 25; ++byte) counting.push_back(byte);
  CHECK_EQ(hex(hmac_sha256(counting, std::string(50, '\xcd'))),
           "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                           "Test Using Larger Than Block-Size Key - Hash Key First")),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                           "This is a test using a larger than block-size key and a larger than "
                           "block-size data. The key needs to be hashed before being used by the "
                           "HMAC algorithm.")),
           "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(equal_means_every_byte_and_the_length) {
  CHECK(equal_in_constant_time("", ""));
  CHECK(equal_in_constant_time("secret", "secret"));
  CHECK(!equal_in_constant_time("secret", "secreT"));
  CHECK(!equal_in_constant_time("secret", "Secret"));
  CHECK(!equal_in_constant_time("secret", "secret1"));
}

TEST(random_bytes_do_not_repeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    std::string bytes(32, '\0');
    fill_with_random_bytes(bytes.data(), bytes.size());
    CHECK(seen.insert(bytes).second);
  }
}

}  // namespace hvdtune::testing::test_sha256
