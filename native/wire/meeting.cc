#include "wire/meeting.h"

#include "wire/codec.h"

namespace hvdtune::wire {
namespace {

void put_places(Encoder& out, const std::vector<Place>& places) {
  out.put(static_cast<std::uint32_t>(places.size()));
  for (const Place& place : places) out.put(place.host).put(place.port);
}

std::vector<Place> get_places(Decoder& in) {
  std::vector<Place> places(in.get_count(sizeof(std::uint32_t) + sizeof(std::int32_t)));
  for (Place& place : places) {
    place.host = in.get_string();
    place.port = in.get<std::int32_t>();
  }
  return places;
}

}  // namespace

std::string encode_places(const std::vector<Place>& places) {
  Encoder out;
  put_places(out, places);
  return out.take();
}

std::vector<Place> decode_places(std::string_view bytes) {
  Decoder in(bytes);
  std::vector<Place> places = get_places(in);
  in.finish();
  return places;
}

std::string Introduction::encode() const {
  Encoder out;
  out.put(protocol).put(version).put(meeting).put(from).put(to).put(lane);
  out.put(size).put(pid).put(hostname).put(agreement);
  return out.take();
}

Introduction Introduction::decode(std::string_view bytes) {
  Decoder in(bytes);
  Introduction message;
  message.protocol = in.get<std::uint32_t>();
  message.version = in.get_string();
  if (message.protocol != kProtocol) return message;
  message.meeting = in.get_string();
  message.from = in.get<std::int32_t>();
  message.to = in.get<std::int32_t>();
  const auto lane = in.get<std::uint8_t>();
  if (lane > static_cast<std::uint8_t>(Lane::kData))
    throw DecodeError("unknown kind of connection");
  message.lane = static_cast<Lane>(lane);
  message.size = in.get<std::int32_t>();
  message.pid = in.get<std::int32_t>();
  message.hostname = in.get_string();
  message.agreement = in.get_string();
  in.finish();
  return message;
}

std::string Directory::encode() const {
  Encoder out;
  out.put(kProtocol).put(error).put(meeting).put(static_cast<std::uint32_t>(entries.size()));
  for (const Entry& entry : entries) {
    out.put(entry.hostname).put(entry.pid);
    put_places(out, entry.places);
  }
  return out.take();
}

Directory Directory::decode(std::string_view bytes) {
  Decoder in(bytes);
  Directory directory;
  const auto protocol = in.get<std::uint32_t>();
  directory.error = in.get_string();
  if (protocol != kProtocol) {
    if (directory.error.empty()) throw DecodeError("another protocol");
    return directory;
  }
  directory.meeting = in.get_string();
  directory.entries.resize(in.get_count(3 * sizeof(std::uint32_t)));
  for (Entry& entry : directory.entries) {
    entry.hostname = in.get_string();
    entry.pid = in.get<std::int32_t>();
    entry.places = get_places(in);
  }
  in.finish();
  return directory;
}

}  // namespace hvdtune::wire
