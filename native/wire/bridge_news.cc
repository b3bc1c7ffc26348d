#include "wire/bridge_news.h"

#include <cstring>

#include "wire/codec.h"

namespace hvdtune::wire {

void append_news(std::string& out, const News& news) {
  const auto put = [&out](const auto& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(static_cast<std::uint32_t>(news.bytes.size()));
  put(news.type);
  put(news.number);
  put(news.value);
  out.append(news.bytes);
}

bool take_news(std::string_view stream, std::size_t& at, News& news) {
  if (stream.size() - at < kNewsHeader) return false;
  const auto get = [&stream](std::size_t from, auto& value) {
    std::memcpy(&value, stream.data() + from, sizeof(value));
  };
  std::uint32_t length = 0;
  std::uint8_t type = 0;
  get(at, length);
  get(at + 4, type);
  if (length > kMostNewsBytes) throw DecodeError("a message between hosts is too long");
  if (type < static_cast<std::uint8_t>(NewsType::kAnnounce) ||
      type > static_cast<std::uint8_t>(NewsType::kMessage)) {
    throw DecodeError("a message between hosts has an unknown type");
  }
  if (stream.size() - at - kNewsHeader < length) return false;
  news.type = static_cast<NewsType>(type);
  get(at + 5, news.number);
  get(at + 9, news.value);
  news.bytes = stream.substr(at + kNewsHeader, length);
  at += kNewsHeader + length;
  return true;
}

}  // namespace hvdtune::wire
