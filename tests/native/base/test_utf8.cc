// Texts that are cut.
#include "base/utf8.h"

#include <string>

#include "check.h"

namespace hvdtune::testing::test_utf8 {

TEST(a_text_that_fits_stays_whole) {
  for (const std::string text : {"", "rank 1", "r\xC3\xA4nk"}) {
    CHECK_EQ(utf8_prefix(text, text.size()), text);
    CHECK_EQ(utf8_prefix(text, text.size() + 7), text);
  }
}

TEST(a_text_is_cut_between_its_characters) {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z";  // 1, 2, 3, 4 bytes and 1
  const std::size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
  for (std::size_t bytes = 0; bytes <= text.size(); ++bytes) {
    CHECK_EQ(utf8_prefix(text, bytes), text.substr(0, expected[bytes]));
  }
}

TEST(other_text_is_cut_as_well) {
  const std::string text(100, '\x80');
  CHECK_EQ(utf8_prefix(text, 50).size(), 47U);
  CHECK_EQ(utf8_prefix(text, 2).size(), 0U);
}

}  // namespace hvdtune::testing::test_utf8
