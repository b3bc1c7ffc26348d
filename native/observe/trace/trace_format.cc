#include "observe/trace/trace_format.h"

#include <array>
#include <charconv>

#include "base/dtype.h"
#include "base/op_kind.h"

namespace hvdtune {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

void append_number(std::string& out, std::int64_t value) {
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

/// Length of the well-formed UTF-8 sequence at the start of `text`, or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  std::size_t length = 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and values above U+10FFFF.
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;
  if (lead == 0xED && byte(1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

void append_escape(std::string& out, char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
  }
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const char c = text.front();
    const auto code = static_cast<unsigned char>(c);
    std::size_t length = 1;
    if (code < 0x20 || code == 0x7F || c == '"' || c == '\\') {
      append_escape(out, c);
    } else if (length = utf8_length(text); length > 0) {
      out += text.substr(0, length);
    } else {
      out += kReplacement;
      length = 1;
    }
    text.remove_prefix(length);
  }
}

void TraceFormatter::header(std::string& out, std::int64_t origin_wall_micros) {
  std::string args = "{\"start_time_since_epoch_in_micros\":";
  append_number(args, origin_wall_micros);
  metadata(out, 0, args + "}");
}

void TraceFormatter::event(std::string& out, const EventRecord& record, std::string_view text) {
  switch (record.kind) {
    case EventKind::kRow: {
      Row& named = row(record.row);
      named.pid = record.value;
      named.shape.clear();
      std::string args = "{\"name\": \"";
      append_json_escaped(args, text);
      metadata(out, named.pid, args + "\"}");
      break;
    }
    case EventKind::kShape:
      row(record.row).shape = text;
      break;
    case EventKind::kNegotiateStart:
      begin(out, "NEGOTIATE_", op_kind_name(static_cast<OpKind>(record.detail)), record);
      break;
    case EventKind::kRankReady:
      separate(out);
      out += R"({"ph": "X", "name": ")";
      append_number(out, record.value);
      time_and_pid(out, record);
      out += R"(, "dur": 0})";
      break;
    case EventKind::kSpanStart:
      begin(out, "", record.label, record);
      break;
    case EventKind::kSpanEnd:
      separate(out);
      out += R"({"ph": "E)";
      time_and_pid(out, record);
      out += '}';
      break;
    case EventKind::kOpEnd:
      end_of_operation(out, record);
      break;
    case EventKind::kCycleStart:
      instant(out, "CYCLE_START", record.time);
      out += '}';
      break;
    case EventKind::kInstant:
      instant(out, text, record.time);
      out += '}';
      break;
  }
}

void TraceFormatter::dropped(std::string& out, Nanos time, std::uint64_t count) {
  instant(out, "DROPPED_EVENTS", time);
  out += R"(, "args": {"dropped": )";
  append_number(out, static_cast<std::int64_t>(count));
  out += "}}";
}

void TraceFormatter::separate(std::string& out) {
  out += separator_;
  separator_ = ",";
}

void TraceFormatter::metadata(std::string& out, std::int64_t pid, std::string_view name_args) {
  separate(out);
  out += R"({"name": "process_name", "ph": "M", "pid": )";
  append_number(out, pid);
  out += R"(, "args": )";
  out += name_args;
  out += "},\n";
  out += R"({"name": "process_sort_index", "ph": "M", "pid": )";
  append_number(out, pid);
  out += R"(, "args": {"sort_index": )";
  append_number(out, pid);
  out += "}}";
  separator_ = ",\n";
}

void TraceFormatter::begin(std::string& out, std::string_view prefix, std::string_view label,
                           const EventRecord& record) {
  separate(out);
  out += R"({"ph": "B", "name": ")";
  out += prefix;
  append_json_escaped(out, label);
  time_and_pid(out, record);
  out += '}';
}

void TraceFormatter::end_of_operation(std::string& out, const EventRecord& record) {
  separate(out);
  out += R"({"ph": "E)";
  time_and_pid(out, record);
  out += R"(, "args": {"dtype": ")";
  out += dtype_name(static_cast<DType>(record.detail));
  out += R"(", "shape": ")";
  append_json_escaped(out, row(record.row).shape);
  out += R"(", "bytes": )";
  append_number(out, record.value);
  out += R"(, "batch": )";
  append_number(out, static_cast<std::int64_t>(record.batch));
  out += "}}";
}

void TraceFormatter::instant(std::string& out, std::string_view name, Nanos time) {
  separate(out);
  out += R"({"ph": "i", "name": ")";
  append_json_escaped(out, name);
  out += R"(", "ts": )";
  append_number(out, micros(time));
  out += R"(, "s": "g", "pid": 0)";
}

// Closes the string that the caller began.
void TraceFormatter::time_and_pid(std::string& out, const EventRecord& record) {
  out += R"(", "ts": )";
  append_number(out, micros(record.time));
  out += R"(, "pid": )";
  append_number(out, row(record.row).pid);
}

std::int64_t TraceFormatter::micros(Nanos time) const {
  return time <= origin_ ? 0 : (time - origin_) / kMicrosecond;
}

TraceFormatter::Row& TraceFormatter::row(std::uint32_t index) {
  if (index >= rows_.size()) rows_.resize(index + 1);
  return rows_[index];
}

}  // namespace hvdtune
