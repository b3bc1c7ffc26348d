#include "wire/messages.h"

#include <cstring>

namespace hvdtune::wire {
namespace {

void encode_settings(Encoder& out, const RuntimeSettings& settings) {
  out.put(settings.epoch).put(settings.fusion_threshold).put(settings.cycle_time);
  out.put(settings.chunk_size).put(settings.one_shot_limit).put(settings.nccl_bypass_limit);
  out.put(settings.hierarchical_allreduce).put(settings.hierarchical_allgather);
  out.put(settings.nccl_streams);
}

RuntimeSettings decode_settings(Decoder& in) {
  RuntimeSettings settings;
  settings.epoch = in.get<std::uint64_t>();
  settings.fusion_threshold = in.get<std::int64_t>();
  settings.cycle_time = in.get<Nanos>();
  settings.chunk_size = in.get<std::int64_t>();
  settings.one_shot_limit = in.get<std::int64_t>();
  settings.nccl_bypass_limit = in.get<std::int64_t>();
  settings.hierarchical_allreduce = in.get<std::uint8_t>() != 0;
  settings.hierarchical_allgather = in.get<std::uint8_t>() != 0;
  settings.nccl_streams = in.get<std::int32_t>();
  return settings;
}

void encode_timeline(Encoder& out, const TimelineOrder& order) {
  out.put(order.action).put(order.path).put(order.mark_cycles);
  out.put(order.first_step).put(order.end_step).put(order.all_ranks);
  out.put(order.recording).put(order.time_space).put(order.problem);
}

TimelineOrder decode_timeline(Decoder& in) {
  TimelineOrder order;
  const auto action = in.get<std::uint8_t>();
  if (action > static_cast<std::uint8_t>(TimelineOrder::Action::kToggle)) {
    throw DecodeError("unknown timeline action");
  }
  order.action = static_cast<TimelineOrder::Action>(action);
  order.path = in.get_string();
  order.mark_cycles = in.get<std::uint8_t>() != 0;
  order.first_step = in.get<std::int64_t>();
  order.end_step = in.get<std::int64_t>();
  order.all_ranks = in.get<std::uint8_t>() != 0;
  order.recording = in.get_string();
  order.time_space = in.get_string();
  order.problem = in.get_string();
  return order;
}

void encode_entries(Encoder& out, const std::vector<BatchEntry>& entries) {
  out.put(static_cast<std::uint32_t>(entries.size()));
  for (const BatchEntry& entry : entries) {
    out.put(entry.slot).put(entry.run).put(entry.name).put(entry.description.has_value());
    if (entry.description) entry.description->encode(out);
  }
}

std::vector<BatchEntry> decode_entries(Decoder& in) {
  std::vector<BatchEntry> entries(in.get_count(sizeof(Slot) + 2 * sizeof(std::uint32_t) + 1));
  for (BatchEntry& entry : entries) {
    entry.slot = in.get<Slot>();
    entry.run = in.get<std::uint32_t>();
    if (entry.run == 0 || entry.run > kMaxRun) throw DecodeError("a run of 0 or too many slots");
    entry.name = in.get_string();
    if (in.get<std::uint8_t>() != 0) entry.description = Request::decode(in);
  }
  return entries;
}

}  // namespace

AnnouncedSlotBytes encode_announce_slot(Slot slot, Ticket ticket, Nanos time, bool registered) {
  AnnouncedSlotBytes announced;
  char* at = announced.bytes.data();
  const auto put = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof(value));
    at += sizeof(value);
  };
  put(AnnounceType::kSlot);
  put(slot);
  put(ticket);
  put(time);
  put(static_cast<std::uint8_t>(registered));
  return announced;
}

AnnouncedSlot decode_announce_slot(std::string_view bytes) {
  Decoder in(bytes.substr(sizeof(AnnounceType)));
  AnnouncedSlot announced;
  announced.slot = in.get<Slot>();
  announced.ticket = in.get<Ticket>();
  announced.time = in.get<Nanos>();
  announced.registered = in.get<std::uint8_t>() != 0;
  in.finish();
  return announced;
}

std::string encode_announce_request(const Request& request, Ticket ticket, Nanos time) {
  Encoder out;
  out.put(AnnounceType::kRequest).put(ticket).put(time);
  request.encode(out);
  return out.take();
}

std::string encode_announce_shutdown() { return Encoder().put(AnnounceType::kShutdown).take(); }

std::string encode_announce_stack(std::uint64_t question, std::string_view text) {
  return Encoder().put(AnnounceType::kStackReply).put(question).put(text).take();
}

std::string encode_announce_timeline(const TimelineOrder& order) {
  Encoder out;
  out.put(AnnounceType::kTimeline);
  encode_timeline(out, order);
  return out.take();
}

Announce decode_announce(std::string_view bytes) {
  Decoder in(bytes);
  Announce announce;
  announce.type = static_cast<AnnounceType>(in.get<std::uint8_t>());
  switch (announce.type) {
    case AnnounceType::kSlot: {
      const AnnouncedSlot announced = decode_announce_slot(bytes);
      announce.slot = announced.slot;
      announce.ticket = announced.ticket;
      announce.time = announced.time;
      announce.registered = announced.registered;
      return announce;
    }
    case AnnounceType::kRequest:
      announce.ticket = in.get<Ticket>();
      announce.time = in.get<Nanos>();
      announce.request = Request::decode(in);
      break;
    case AnnounceType::kShutdown:
      break;
    case AnnounceType::kStackReply:
      announce.question = in.get<std::uint64_t>();
      announce.text = in.get_string();
      break;
    case AnnounceType::kTimeline:
      announce.timeline = decode_timeline(in);
      break;
    default:
      throw DecodeError("unknown type of announcement");
  }
  in.finish();
  return announce;
}

bool is_announce_slot(std::string_view bytes) {
  return !bytes.empty() && bytes.front() == static_cast<char>(AnnounceType::kSlot);
}

std::string Schedule::encode() const {
  Encoder out;
  out.put(type);
  switch (type) {
    case ScheduleType::kBatch:
    case ScheduleType::kReject:
    case ScheduleType::kEvict:
      out.put(process_set).put(batch).put(reason).put(registered);
      encode_entries(out, entries);
      out.put(status.kind).put(status.text);
      break;
    case ScheduleType::kAddProcessSet:
    case ScheduleType::kRemoveProcessSet:
    case ScheduleType::kJoined:
      out.put(process_set).put(rank).put_all(ranks);
      encode_entries(out, entries);
      break;
    case ScheduleType::kSettings:
      encode_settings(out, settings);
      break;
    case ScheduleType::kStackQuery:
      out.put(rank).put(question);
      break;
    case ScheduleType::kInterrupt:
      out.put(interrupt);
      break;
    case ScheduleType::kTimeline:
      out.put(rank);
      encode_timeline(out, timeline);
      break;
    case ScheduleType::kShutdown:
      out.put(status.kind).put(status.text);
      break;
  }
  return out.take();
}

Schedule Schedule::decode(std::string_view bytes) {
  Decoder in(bytes);
  Schedule schedule;
  schedule.type = static_cast<ScheduleType>(in.get<std::uint8_t>());
  switch (schedule.type) {
    case ScheduleType::kBatch:
    case ScheduleType::kReject:
    case ScheduleType::kEvict:
      schedule.process_set = in.get<std::uint32_t>();
      schedule.batch = in.get<std::uint64_t>();
      schedule.reason = static_cast<CloseReason>(in.get<std::uint8_t>());
      schedule.registered = in.get<std::uint8_t>() != 0;
      schedule.entries = decode_entries(in);
      schedule.status.kind = static_cast<ErrorKind>(in.get<std::uint8_t>());
      schedule.status.text = in.get_string();
      break;
    case ScheduleType::kAddProcessSet:
    case ScheduleType::kRemoveProcessSet:
    case ScheduleType::kJoined:
      schedule.process_set = in.get<std::uint32_t>();
      schedule.rank = in.get<std::int32_t>();
      schedule.ranks = in.get_all<std::int32_t>();
      schedule.entries = decode_entries(in);
      // Readers rely on the single entry that ranks wait for.
      if (schedule.entries.size() != 1) throw DecodeError("a schedule entry without its operation");
      break;
    case ScheduleType::kSettings:
      schedule.settings = decode_settings(in);
      break;
    case ScheduleType::kStackQuery:
      schedule.rank = in.get<std::int32_t>();
      schedule.question = in.get<std::uint64_t>();
      break;
    case ScheduleType::kInterrupt:
      schedule.interrupt = in.get<std::uint64_t>();
      break;
    case ScheduleType::kTimeline:
      schedule.rank = in.get<std::int32_t>();
      schedule.timeline = decode_timeline(in);
      break;
    case ScheduleType::kShutdown:
      schedule.status.kind = static_cast<ErrorKind>(in.get<std::uint8_t>());
      schedule.status.text = in.get_string();
      break;
    default:
      throw DecodeError("unknown type of schedule entry");
  }
  in.finish();
  return schedule;
}

}  // namespace hvdtune::wire
