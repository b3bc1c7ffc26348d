#include "collective/exchange_texts.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"

namespace hvdtune {

std::vector<std::string> exchange_texts(Communicator& control, const std::string& mine) {
  constexpr std::size_t kWords = kTextBytes / sizeof(std::int64_t);
  std::vector<std::int64_t> words(kWords);
  const std::string_view whole = utf8_prefix(mine, kTextBytes - 1);
  std::memcpy(words.data(), whole.data(), whole.size());
  const std::vector<std::int64_t> all = control.exchange(words);
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += kWords) {
    texts.emplace_back(reinterpret_cast<const char*>(&all[at]));
  }
  return texts;
}

std::string first_problem(Communicator& control, const std::string& mine) {
  for (std::string& text : exchange_texts(control, mine)) {
    if (!text.empty()) return text;
  }
  return {};
}

void all_or_none(Communicator& control, const std::string& mine) {
  const std::string first = first_problem(control, mine);
  if (!first.empty()) throw Error(ErrorKind::kInvalidArgument, first);
}

}  // namespace hvdtune
