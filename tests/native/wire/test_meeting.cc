// What ranks say when they meet over a network: decoders of bytes from elsewhere.
#include "wire/meeting.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "wire/codec.h"

namespace hvdtune::testing::test_meeting {
namespace {

using wire::DecodeError;
using wire::Directory;
using wire::Introduction;
using wire::Lane;
using wire::Place;

Introduction sample_introduction() {
  Introduction message;
  message.version = "1.2.3";
  message.meeting = std::string("\0meeting", 8);
  message.from = 3;
  message.to = 1;
  message.lane = Lane::kData;
  message.size = 4;
  message.pid = 77;
  message.hostname = "a";
  message.agreement = "X=1\n";
  return message;
}

Directory sample_directory() {
  Directory directory;
  directory.meeting = "0123456789abcdef";
  directory.entries = {{"a", 1, {}}, {"b", 2, {{"10.0.0.2", 4000}, {"fd00::2", 4001}}}};
  return directory;
}

/// A message, and whether bytes are one of its kind.
struct Kind {
  std::string whole;
  std::function<void(std::string_view)> decode;

  [[nodiscard]] bool accepts(std::string_view bytes) const {
    try {
      decode(bytes);
      return true;
    } catch (const DecodeError&) {
      return false;
    }
  }
};

std::vector<Kind> kinds() {
  return {{sample_introduction().encode(), [](std::string_view b) { Introduction::decode(b); }},
          {sample_directory().encode(), [](std::string_view b) { Directory::decode(b); }},
          {wire::encode_places(sample_directory().entries[1].places),
           [](std::string_view b) { wire::decode_places(b); }}};
}

}  // namespace

TEST(messages_survive_the_wire) {
  const Introduction sent = sample_introduction();
  const Introduction got = Introduction::decode(sent.encode());
  CHECK_EQ(got.protocol, wire::kProtocol);
  CHECK_EQ(got.version, sent.version);
  CHECK_EQ(got.meeting, sent.meeting);
  CHECK_EQ(got.from, 3);
  CHECK_EQ(got.to, 1);
  CHECK(got.lane == Lane::kData);
  CHECK_EQ(got.size, 4);
  CHECK_EQ(got.pid, 77);
  CHECK_EQ(got.hostname, sent.hostname);
  CHECK_EQ(got.agreement, sent.agreement);
  const Directory directory = Directory::decode(sample_directory().encode());
  CHECK_EQ(directory.error, std::string());
  CHECK_EQ(directory.meeting, sample_directory().meeting);
  CHECK_EQ(directory.entries.size(), std::size_t{2});
  CHECK_EQ(directory.entries[1].hostname, std::string("b"));
  CHECK_EQ(directory.entries[1].pid, 2);
  const std::vector<Place>& places = directory.entries[1].places;
  CHECK_EQ(places.size(), std::size_t{2});
  CHECK_EQ(places[1].host, std::string("fd00::2"));
  CHECK_EQ(places[1].port, 4001);
}

TEST(every_truncated_or_longer_message_is_refused) {
  for (const Kind& kind : kinds()) {
    CHECK(kind.accepts(kind.whole));
    CHECK(!kind.accepts(kind.whole + '\0'));
    for (std::size_t length = 0; length < kind.whole.size(); ++length) {
      CHECK_MSG(!kind.accepts(std::string_view(kind.whole).substr(0, length)),
                "accepted " << length << " of " << kind.whole.size() << " bytes");
    }
  }
}

TEST(damaged_and_random_bytes_do_no_harm) {
  std::mt19937_64 generator(6);
  int accepted = 0;
  int refused = 0;
  for (const Kind& kind : kinds()) {
    for (int round = 0; round < 20000; ++round) {
      std::string bytes = kind.whole;
      if (round % 4 == 0) bytes.resize(generator() % 100);
      for (std::uint64_t i = 1 + generator() % 3; i > 0 && !bytes.empty(); --i) {
        bytes[generator() % bytes.size()] = static_cast<char>(generator());
      }
      ++(kind.accepts(bytes) ? accepted : refused);
    }
  }
  CHECK(accepted > 0);
  CHECK(refused > 0);
}

TEST(another_protocol_shows_its_version_or_error_and_nothing_else) {
  wire::Encoder introduction;
  introduction.put(std::uint32_t{99}).put(std::string_view("9.0")).put(std::string_view("news"));
  const Introduction got = Introduction::decode(introduction.bytes());
  CHECK_EQ(got.protocol, std::uint32_t{99});
  CHECK_EQ(got.version, std::string("9.0"));
  CHECK_EQ(got.meeting, std::string());
  wire::Encoder refusal;
  refusal.put(std::uint32_t{99}).put(std::string_view("go away")).put(std::string_view("news"));
  CHECK_EQ(Directory::decode(refusal.bytes()).error, std::string("go away"));
  wire::Encoder directory;
  directory.put(std::uint32_t{99}).put(std::string_view(""));
  CHECK_THROWS_WITH(Directory::decode(directory.bytes()), DecodeError, "another protocol");
}

}  // namespace hvdtune::testing::test_meeting
