#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "observe/trace/event_ring.h"

namespace hvdtune {

/// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters are
/// escaped, bytes that are not UTF-8 become U+FFFD.
void append_json_escaped(std::string& out, std::string_view text);

/// Turns event records into Horovod's Chrome-trace events (one process per tensor name).
/// Times are microseconds since `origin`; earlier ones are shown as 0.
class TraceFormatter {
 public:
  explicit TraceFormatter(Nanos origin) : origin_(origin) {}

  /// Appends the two events that open a file. `origin_wall_micros` is the origin in microseconds
  /// since the epoch.
  void header(std::string& out, std::int64_t origin_wall_micros);

  /// Appends the event, after a comma if it is not the first one.
  void event(std::string& out, const EventRecord& record, std::string_view text);

  /// Appends a global instant that says how many events were lost so far.
  void dropped(std::string& out, Nanos time, std::uint64_t count);

 private:
  struct Row {
    std::int64_t pid = 0;
    std::string shape;
  };

  void separate(std::string& out);
  void metadata(std::string& out, std::int64_t pid, std::string_view name_args);
  void begin(std::string& out, std::string_view prefix, std::string_view label,
             const EventRecord& record);
  void end_of_operation(std::string& out, const EventRecord& record);
  void instant(std::string& out, std::string_view name, Nanos time);
  void time_and_pid(std::string& out, const EventRecord& record);
  [[nodiscard]] std::int64_t micros(Nanos time) const;
  [[nodiscard]] Row& row(std::uint32_t index);

  Nanos origin_;
  std::vector<Row> rows_;
  std::string_view separator_;  // text before the next event
};

}  // namespace hvdtune
