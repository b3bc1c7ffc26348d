// What bridges tell each other: whole or not at all, and nothing that is not of this format.
#include <string>
#include <vector>

#include "check.h"
#include "wire/bridge_news.h"
#include "wire/codec.h"

namespace hvdtune::testing::test_bridge_news {
namespace {

using wire::News;
using wire::NewsType;

std::string stream_of(const std::vector<News>& all) {
  std::string stream;
  for (const News& news : all) wire::append_news(stream, news);
  return stream;
}

}  // namespace

TEST(news_come_as_they_went) {
  const std::string stream = stream_of({{NewsType::kAnnounce, 3, 0, "some bytes"},
                                        {NewsType::kPosition, 1, 1ULL << 40, {}},
                                        {NewsType::kMessage, 2, 0, "x"}});
  std::size_t at = 0;
  News news;
  CHECK(wire::take_news(stream, at, news));
  CHECK(news.type == NewsType::kAnnounce && news.number == 3 && news.bytes == "some bytes");
  CHECK(wire::take_news(stream, at, news));
  CHECK(news.type == NewsType::kPosition && news.number == 1 && news.value == 1ULL << 40);
  CHECK(wire::take_news(stream, at, news));
  CHECK(news.type == NewsType::kMessage && news.bytes == "x");
  CHECK(!wire::take_news(stream, at, news));
  CHECK_EQ(at, stream.size());
}

TEST(what_is_cut_anywhere_waits_for_the_rest) {
  const std::string stream = stream_of({{NewsType::kSchedule, 0, 0, "a batch"}});
  for (std::size_t length = 0; length < stream.size(); ++length) {
    std::size_t at = 0;
    News news;
    CHECK(!wire::take_news(std::string_view(stream).substr(0, length), at, news));
    CHECK_EQ(at, std::size_t{0});
  }
}

TEST(what_is_none_is_refused) {
  const auto refused = [](const std::string& stream) {
    try {
      std::size_t at = 0;
      News news;
      wire::take_news(stream, at, news);
    } catch (const wire::DecodeError&) {
      return true;
    }
    return false;
  };
  std::string unknown = stream_of({{NewsType::kMessage, 0, 0, "x"}});
  unknown[4] = 0;
  CHECK(refused(unknown));
  unknown[4] = 100;
  CHECK(refused(unknown));
  std::string endless = stream_of({{NewsType::kMessage, 0, 0, "x"}});
  endless[3] = 0x7f;
  CHECK(refused(endless));
}

}  // namespace hvdtune::testing::test_bridge_news
