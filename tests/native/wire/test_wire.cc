#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "wire/codec.h"
#include "wire/messages.h"
#include "wire/request.h"

namespace hvdtune::testing::test_wire {
namespace {

using wire::Announce;
using wire::AnnounceType;
using wire::DecodeError;
using wire::Request;
using wire::Schedule;
using wire::ScheduleType;

Request sample_request() {
  Request request;
  request.process_set = 3;
  request.kind = OpKind::kReducescatter;
  request.reduce_op = ReduceOp::kProduct;
  request.grouped = true;
  request.cacheable = false;
  request.root = -1;
  request.device = 7;
  request.prescale = 0.125;
  request.postscale = -3.0;
  request.name = std::string("grad \0 \"é\"", 11);
  request.tensors = {{DType::kBfloat16, {4, 0, 7}}, {DType::kBool, {}}};
  request.ranks = {5, -1};
  return request;
}

wire::TimelineOrder sample_order() {
  return {wire::TimelineOrder::Action::kStart,
          "/tmp/a \"b\"\n.json",
          true,
          100,
          120,
          true,
          "job/7",
          "time:[4026531834]",
          "no room"};
}

Schedule sample_schedule(ScheduleType type) {
  Schedule schedule;
  schedule.type = type;
  switch (type) {
    case ScheduleType::kBatch:
    case ScheduleType::kReject:
    case ScheduleType::kEvict:
      schedule.process_set = 2;
      schedule.batch = UINT64_MAX;
      schedule.reason = wire::CloseReason::kStepDone;
      schedule.registered = true;
      schedule.entries = {
          {7, "", {}, 5}, {wire::kNoSlot, "a name", {}}, {3, "t", sample_request()}};
      schedule.status = {ErrorKind::kMismatch, "they differ"};
      break;
    case ScheduleType::kSettings:
      schedule.settings = {9, 1LL << 40, 5 * kMillisecond, 65536, 4096, 8192, true, false, 3};
      break;
    case ScheduleType::kStackQuery:
      schedule.rank = 5;
      break;
    case ScheduleType::kInterrupt:
      schedule.interrupt = UINT64_MAX;
      break;
    case ScheduleType::kTimeline:
      schedule.rank = 5;
      schedule.timeline = sample_order();
      break;
    case ScheduleType::kShutdown:
      schedule.status = {ErrorKind::kShutdown, "done"};
      break;
    case ScheduleType::kAddProcessSet:
    case ScheduleType::kRemoveProcessSet:
    case ScheduleType::kJoined:
      schedule.process_set = 3;
      schedule.rank = 6;
      schedule.ranks = {0, 2, 63};
      schedule.entries = {{wire::kNoSlot, "process_set.add", {}}};
      break;
  }
  return schedule;
}

constexpr ScheduleType kScheduleTypes[] = {
    ScheduleType::kBatch,         ScheduleType::kReject,           ScheduleType::kEvict,
    ScheduleType::kSettings,      ScheduleType::kStackQuery,       ScheduleType::kShutdown,
    ScheduleType::kAddProcessSet, ScheduleType::kRemoveProcessSet, ScheduleType::kJoined,
    ScheduleType::kTimeline,      ScheduleType::kInterrupt};

std::vector<std::string> announcements() {
  return {std::string(wire::encode_announce_slot(12, 34, -56, true)),
          wire::encode_announce_request(sample_request(), 78, 90), wire::encode_announce_shutdown(),
          wire::encode_announce_stack(7, "line 1\nline 2"),
          wire::encode_announce_timeline(sample_order())};
}

std::vector<std::string> schedules() {
  std::vector<std::string> all;
  for (const ScheduleType type : kScheduleTypes) all.push_back(sample_schedule(type).encode());
  return all;
}

void decode_any(bool announcement, std::string_view bytes) {
  if (announcement) {
    wire::decode_announce(bytes);
  } else {
    Schedule::decode(bytes);
  }
}

/// Anything but a clean result or DecodeError escapes and fails the test. A copy of exactly the
/// right length: a read behind its end is caught by the address sanitizer.
bool accepts(bool announcement, std::string_view bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  try {
    decode_any(announcement, {exact.data(), exact.size()});
    return true;
  } catch (const DecodeError&) {
    return false;
  }
}

}  // namespace

TEST(announcements_survive_the_wire) {
  const auto all = announcements();
  const Announce slot = wire::decode_announce(all[0]);
  CHECK(slot.type == AnnounceType::kSlot);
  CHECK_EQ(slot.slot, 12U);
  CHECK_EQ(slot.ticket, 34U);
  CHECK_EQ(slot.time, -56);
  CHECK(slot.registered);
  CHECK(!wire::decode_announce(wire::encode_announce_slot(12, 34, -56)).registered);
  const Announce request = wire::decode_announce(all[1]);
  CHECK(request.type == AnnounceType::kRequest);
  CHECK_EQ(request.ticket, 78U);
  CHECK_EQ(request.time, 90);
  CHECK(request.request == sample_request());
  CHECK(wire::decode_announce(all[2]).type == AnnounceType::kShutdown);
  CHECK(wire::decode_announce(all[4]).timeline == sample_order());
  const Announce stack = wire::decode_announce(all[3]);
  CHECK(stack.type == AnnounceType::kStackReply);
  CHECK_EQ(stack.text, "line 1\nline 2");
}

TEST(schedules_survive_the_wire) {
  for (const ScheduleType type : kScheduleTypes) {
    const Schedule sent = sample_schedule(type);
    const Schedule got = Schedule::decode(sent.encode());
    CHECK(got.type == type);
    CHECK_EQ(got.process_set, sent.process_set);
    CHECK_EQ(got.batch, sent.batch);
    CHECK(got.reason == sent.reason);
    CHECK_EQ(got.registered, sent.registered);
    CHECK_EQ(got.entries.size(), sent.entries.size());
    for (std::size_t i = 0; i < sent.entries.size(); ++i) {
      CHECK_EQ(got.entries[i].slot, sent.entries[i].slot);
      CHECK_EQ(got.entries[i].run, sent.entries[i].run);
      CHECK_EQ(got.entries[i].name, sent.entries[i].name);
    }
    CHECK(got.status.kind == sent.status.kind);
    CHECK_EQ(got.status.text, sent.status.text);
    CHECK(got.settings == sent.settings);
    CHECK_EQ(got.rank, sent.rank);
  }
}

TEST(every_truncated_or_longer_message_is_refused) {
  for (const bool announcement : {true, false}) {
    for (const std::string& whole : announcement ? announcements() : schedules()) {
      CHECK(accepts(announcement, whole));
      CHECK(!accepts(announcement, whole + '\0'));
      for (std::size_t length = 0; length < whole.size(); ++length) {
        CHECK_MSG(!accepts(announcement, std::string_view(whole).substr(0, length)),
                  "accepted " << length << " of " << whole.size() << " bytes");
      }
    }
  }
}

TEST(damaged_and_random_bytes_do_no_harm) {
  std::mt19937_64 generator(6);
  int accepted = 0;
  int refused = 0;
  for (const bool announcement : {true, false}) {
    const auto originals = announcement ? announcements() : schedules();
    for (int round = 0; round < 40000; ++round) {
      std::string bytes;
      if (round % 4 == 0) {
        bytes.resize(generator() % 100);
        for (char& byte : bytes) byte = static_cast<char>(generator());
        // Mostly a type that exists: the rest of the decoder is to be reached.
        if (!bytes.empty() && round % 8 == 0) bytes[0] = static_cast<char>(1 + generator() % 7);
      } else {
        bytes = originals[generator() % originals.size()];
        const auto changes = 1 + generator() % 3;
        for (std::uint64_t i = 0; i < changes; ++i) {
          bytes[generator() % bytes.size()] = static_cast<char>(generator());
        }
        if (generator() % 4 == 0) bytes.resize(generator() % (bytes.size() + 1));
      }
      ++(accepts(announcement, bytes) ? accepted : refused);
    }
  }
  CHECK(accepted > 0);
  CHECK(refused > 0);
}

TEST(a_corrupt_length_allocates_nothing) {
  // 2^32 - 1 entries in a message of a few bytes.
  wire::Encoder out;
  out.put(ScheduleType::kBatch).put(std::uint32_t{0}).put(std::uint64_t{0}).put(std::uint8_t{0});
  out.put(false).put(UINT32_MAX);
  CHECK_THROWS_WITH(Schedule::decode(out.bytes()), DecodeError, "fewer elements than it says");
}

TEST(a_change_of_membership_names_one_operation) {
  Schedule schedule = sample_schedule(ScheduleType::kJoined);
  schedule.entries.clear();
  CHECK_THROWS_WITH(Schedule::decode(schedule.encode()), DecodeError, "without its operation");
}

TEST(unknown_codes_are_refused) {
  CHECK_THROWS_WITH(wire::decode_announce("\x06"), DecodeError, "unknown type");
  CHECK_THROWS_WITH(wire::decode_announce(std::string_view("\0", 1)), DecodeError, "unknown type");
  CHECK_THROWS_WITH(Schedule::decode("\x0c"), DecodeError, "unknown type");
  Request request = sample_request();
  request.kind = static_cast<OpKind>(kOpKindCount);
  CHECK_THROWS_WITH(wire::decode_announce(wire::encode_announce_request(request, 1, 1)),
                    DecodeError, "unknown operation");
  request = sample_request();
  request.tensors[0].dtype = static_cast<DType>(kDTypeCount);
  CHECK_THROWS_WITH(wire::decode_announce(wire::encode_announce_request(request, 1, 1)),
                    DecodeError, "unknown dtype");
}

TEST(requests_know_their_sizes_and_names) {
  const Request request = sample_request();
  CHECK_EQ(request.tensors[0].elements(), 0);
  CHECK_EQ(request.tensors[1].elements(), 1);
  CHECK_EQ(request.bytes(), 1);
  CHECK_EQ(wire::shape_text(request.tensors[0].shape), "[4, 0, 7]");
  CHECK_EQ(wire::shape_text({}), "[]");
  Request named;
  named.name = "loss";
  named.tensors = {{DType::kFloat64, {2, 3}}};
  CHECK_EQ(named.bytes(), 48);
  CHECK_EQ(wire::tensor_name(named, 0), "loss");
  named.grouped = true;
  named.tensors.push_back({});
  CHECK_EQ(wire::tensor_name(named, 1), "loss_2of2");
}

}  // namespace hvdtune::testing::test_wire
