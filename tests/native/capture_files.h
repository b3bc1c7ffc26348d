#pragma once

// What captures have left in their files, and what tests put into them.

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "observe/capture/capture.h"
#include "strict_json.h"

namespace hvdtune::capture {

using testing::Json;
using testing::parse_json;

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string decoded(const std::string& text) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xFF);
  }
  return bytes;
}

/// The tensors of a block of runs, told by the sizes that the block announces.
inline std::string unpacked(const std::string& bytes, std::size_t count, std::size_t runs) {
  std::vector<TensorRun> heads(runs);
  CHECK(bytes.size() >= runs * sizeof(TensorRun));
  if (runs > 0) std::memcpy(heads.data(), bytes.data(), runs * sizeof(TensorRun));
  const std::size_t wide = runs * sizeof(TensorRun);
  std::size_t narrow = wide;
  for (const TensorRun& head : heads) narrow += head.width == 4 ? 4 * (head.tensors - 1) : 0;
  std::string records;
  std::array<std::size_t, 2> at = {wide, narrow};
  for (const TensorRun& head : heads) {
    CHECK(head.width == 2 || head.width == 4);
    Tensor tensor{head.name, head.batch, head.submitted};
    for (std::uint32_t place = 0; place < head.tensors; ++place) {
      if (place > 0) {
        std::int32_t signed_later = 0;
        std::uint16_t later = 0;
        if (head.width == 4) {
          std::memcpy(&signed_later, bytes.data() + std::exchange(at[0], at[0] + 4), 4);
        } else {
          std::memcpy(&later, bytes.data() + std::exchange(at[1], at[1] + 2), 2);
        }
        tensor.submitted += signed_later + Nanos{later};
        tensor.name += head.stride;
      }
      records.append(reinterpret_cast<const char*>(&tensor), sizeof(tensor));
    }
  }
  CHECK_EQ(at[0], narrow);
  CHECK_EQ(at[1], bytes.size());
  CHECK_EQ(records.size(), count * sizeof(Tensor));
  return records;
}

template <typename Record>
std::vector<Record> records(const Json& events, const std::string& stream) {
  std::vector<Record> all;
  for (const Json& event : events.items) {
    if (event.at("name").text != "hvdtune_block") continue;
    const Json& args = event.at("args");
    if (args.at("stream").text != stream) continue;
    const auto count = static_cast<std::size_t>(args.at("count").number);
    std::string bytes = decoded(args.at("data").text);
    if (args.find("runs") != nullptr) {
      CHECK_EQ(stream, "tensors");
      bytes = unpacked(bytes, count, static_cast<std::size_t>(args.at("runs").number));
    }
    CHECK_EQ(bytes.size(), count * sizeof(Record));
    const std::size_t before = all.size();
    all.resize(before + bytes.size() / sizeof(Record));
    std::memcpy(all.data() + before, bytes.data(), bytes.size());
  }
  return all;
}

inline std::vector<const Json*> events_named(const Json& events, const std::string& name) {
  std::vector<const Json*> found;
  for (const Json& event : events.items) {
    if (event.at("name").text == name) found.push_back(&event);
  }
  return found;
}

/// id -> item, of all hvdtune_names (or texts).
inline std::map<long long, const Json*> items(const Json& events, const std::string& what) {
  std::map<long long, const Json*> found;
  for (const Json* event : events_named(events, "hvdtune_" + what)) {
    for (const Json& item : event->at("args").at(what).items) {
      CHECK(found.emplace(item.items.at(0).number, &item).second);
    }
  }
  return found;
}

inline Options options_for(const std::string& path, Window window = {}) {
  return {path, "\"job\":\"j\",\"rank\":3", 3, window, 0};
}

inline std::uint32_t name_one(Capture& capture, const std::string& name, std::int64_t bytes = 8) {
  const std::array<Named, 1> named = {{{name, 0, OpKind::kAllreduce, DType::kFloat32, bytes}}};
  return capture.name(named);
}

inline void record_batch(Capture& capture, std::uint64_t serial, std::uint32_t name,
                         std::size_t tensors) {
  Batch batch;
  batch.serial = serial;
  capture.batch(batch, [&](TensorRuns::Batch& put) {
    for (std::size_t i = 0; i < tensors; ++i) put.put(name, static_cast<Nanos>(i));
  });
}

}  // namespace hvdtune::capture
