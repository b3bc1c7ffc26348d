#include "observe/trace/timeline.h"

#include <algorithm>
#include <utility>

#include "observe/trace/timeline_writer.h"

namespace hvdtune {

Timeline::Timeline(std::size_t capacity, std::size_t max_rows)
    : capacity_(capacity), max_rows_(max_rows) {}

Timeline::~Timeline() {
  stop();
  join();
  replace_stopped({});
}

std::string Timeline::start(const std::string& path, bool mark_cycles, int claimed) {
  mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
  if (active() && path == path_) return {};
  stop();
  if (path == path_) join();  // otherwise two writers would write it
  if (origin_ == 0) {
    origin_ = monotonic_now();
    origin_wall_micros_ = wall_clock_now() / kMicrosecond;
  }
  dropped_.store(0, std::memory_order_relaxed);
  auto ring = std::make_unique<EventRing>(capacity_);
  auto writer = std::make_unique<TimelineWriter>(*ring, dropped_, active_, origin_);
  active_.store(true, std::memory_order_relaxed);
  std::string error = writer->start(path, origin_wall_micros_, claimed);
  if (!error.empty()) {
    active_.store(false, std::memory_order_relaxed);
    return error;
  }
  path_ = path;
  ring_ = std::move(ring);
  writer_ = std::move(writer);
  return {};
}

void Timeline::stop() {
  if (!writer_) return;
  if (!writer_->in_owner_process()) {
    // A forked child: the parent writes the file; leave alone what the missing thread may hold.
    active_.store(false, std::memory_order_relaxed);
    static_cast<void>(writer_.release());
    static_cast<void>(ring_.release());
    replace_stopped({});
    forget_rows();
    return;
  }
  const Nanos now = monotonic_now();
  for (std::uint32_t row = 0; active() && row < rows_.size(); ++row) {
    rows_[row]->negotiation_waits = false;
    end_negotiation(row, now);
    end_activity(row, now);
    close_span(row, rows_[row]->operation, {.time = now, .kind = EventKind::kSpanEnd});
  }
  active_.store(false, std::memory_order_relaxed);
  join();
  writer_->finish();
  replace_stopped(std::make_shared<Stopped>(std::move(ring_), std::move(writer_)));
  forget_rows();
}

void Timeline::replace_stopped(std::shared_ptr<Stopped> stopped) {
  const std::lock_guard lock(stopped_mutex_);
  std::swap(stopped_, stopped);
  // In a forked child, the parent's writer can be neither waited for nor destroyed.
  if (stopped && !stopped->writer->in_owner_process()) {
    static_cast<void>(new std::shared_ptr<Stopped>(std::move(stopped)));
  }
}

void Timeline::join() {
  std::shared_ptr<Stopped> stopped;
  {
    const std::lock_guard lock(stopped_mutex_);
    stopped = stopped_;
  }
  if (stopped && stopped->writer->in_owner_process()) stopped->writer->join();
}

void Timeline::forget_rows() {
  row_of_name_.clear();
  rows_.clear();
  eviction_hand_ = 0;
  next_pid_ = 1;
  set_aside_ = 0;
}

void Timeline::negotiate_start(std::string_view tensor, OpKind kind, Nanos t) {
  if (!active()) return;
  const std::uint32_t index = find_or_add_row(tensor);
  if (index == kNoRow) return;
  Row& row = *rows_[index];
  if (row.negotiation != Span::kClosed) end_negotiation(index, t);
  row.negotiation_waits = true;
  row.waiting_kind = kind;
  row.waiting_time = t;
  if (row.operation == Span::kClosed) begin_waiting_negotiation(index);
}

void Timeline::rank_ready(std::string_view tensor, int rank, Nanos t) {
  if (!active()) return;
  const std::uint32_t index = find_row(tensor);
  if (index == kNoRow) return;
  const Row& row = *rows_[index];
  if (row.negotiation == Span::kLost) lose_event();
  if (row.negotiation != Span::kOpen && !row.negotiation_waits) return;
  push({.time = t, .value = rank, .row = index, .kind = EventKind::kRankReady});
}

void Timeline::negotiate_end(std::string_view tensor, Nanos t) {
  if (!active()) return;
  const std::uint32_t index = find_row(tensor);
  if (index == kNoRow) return;
  rows_[index]->negotiation_waits = false;
  end_negotiation(index, t);
}

void Timeline::op_start(std::string_view tensor, const char* label, Nanos t) {
  if (!active()) return;
  const std::uint32_t index = find_or_add_row(tensor);
  if (index == kNoRow) return;
  Row& row = *rows_[index];
  row.negotiation_waits = false;
  end_negotiation(index, t);
  end_activity(index, t);
  close_span(index, row.operation, {.time = t, .kind = EventKind::kSpanEnd});
  row.operation = open_span(index, {.time = t, .label = label, .kind = EventKind::kSpanStart});
}

void Timeline::activity_start(std::string_view tensor, const char* label, Nanos t) {
  if (!active()) return;
  const std::uint32_t index = find_row(tensor);
  if (index == kNoRow) return;
  Row& row = *rows_[index];
  end_activity(index, t);
  if (row.operation == Span::kOpen) {
    row.activity = open_span(index, {.time = t, .label = label, .kind = EventKind::kSpanStart});
  } else if (row.operation == Span::kLost) {
    row.activity = Span::kLost;
    lose_event();
  }
}

void Timeline::activity_end(std::string_view tensor, Nanos t) {
  if (!active()) return;
  const std::uint32_t index = find_row(tensor);
  if (index != kNoRow) end_activity(index, t);
}

void Timeline::op_end(std::string_view tensor, Nanos t, DType dtype, std::string_view shape,
                      std::int64_t bytes, std::uint64_t batch, bool ok) {
  if (!active()) return;
  const std::uint32_t index = find_row(tensor);
  if (index == kNoRow) return;
  Row& row = *rows_[index];
  end_activity(index, t);
  EventRecord end{.time = t, .kind = EventKind::kSpanEnd};
  if (ok && !shape.empty() && row.operation == Span::kOpen) {
    if (row.shape != shape) {
      row.shape.clear();
      // Without room for the shape, the operation ends without a description.
      if (push({.time = t, .row = index, .kind = EventKind::kShape}, shape)) row.shape = shape;
    }
    if (!row.shape.empty()) {
      end.kind = EventKind::kOpEnd;
      end.detail = static_cast<std::uint8_t>(dtype);
      end.value = bytes;
      end.batch = batch;
    }
  }
  close_span(index, row.operation, end);
  if (row.negotiation_waits) begin_waiting_negotiation(index);
}

void Timeline::cycle_start(Nanos t) {
  if (active() && mark_cycles()) push({.time = t, .kind = EventKind::kCycleStart});
}

void Timeline::instant(std::string_view name, Nanos t) {
  if (active()) push({.time = t, .kind = EventKind::kInstant}, name);
}

bool Timeline::Row::idle() const {
  return negotiation == Span::kClosed && operation == Span::kClosed && !negotiation_waits;
}

std::uint32_t Timeline::find_row(std::string_view tensor) {
  const auto found = row_of_name_.find(tensor);
  return found == row_of_name_.end() ? kNoRow : found->second;
}

std::uint32_t Timeline::find_or_add_row(std::string_view tensor) {
  const std::uint32_t known = find_row(tensor);
  if (known != kNoRow) {
    rows_[known]->used_lately = true;
    return known;
  }
  if (!ring_->has_room(EventRing::slots_for(tensor) + set_aside_)) {
    lose_event();
    return kNoRow;
  }
  const std::uint32_t index = free_row_slot();
  if (index == kNoRow) {
    lose_event();
    return kNoRow;
  }
  push({.value = next_pid_++, .row = index, .kind = EventKind::kRow}, tensor);
  rows_[index]->name = tensor;
  row_of_name_.emplace(rows_[index]->name, index);
  return index;
}

// When all slots are taken: the next one, in turn, that is idle and was not used since the hand
// last passed it (clock algorithm). Two rounds are enough to find one, if any is idle.
std::uint32_t Timeline::free_row_slot() {
  if (rows_.size() < max_rows_) {
    rows_.push_back(std::make_unique<Row>());
    return static_cast<std::uint32_t>(rows_.size() - 1);
  }
  for (std::size_t step = 0; step < 2 * rows_.size(); ++step) {
    const std::size_t index = eviction_hand_;
    eviction_hand_ = (eviction_hand_ + 1) % rows_.size();
    Row& row = *rows_[index];
    if (!row.idle()) continue;
    if (std::exchange(row.used_lately, false)) continue;
    row_of_name_.erase(row.name);
    row = Row();
    return static_cast<std::uint32_t>(index);
  }
  return kNoRow;
}

Timeline::Span Timeline::open_span(std::uint32_t index, EventRecord record) {
  Row& row = *rows_[index];
  record.row = index;
  record.time = std::max(record.time, row.last_time);
  if (!push(record, {}, 1)) return Span::kLost;
  ++set_aside_;
  row.last_time = record.time;
  return Span::kOpen;
}

void Timeline::close_span(std::uint32_t index, Span& span, EventRecord record) {
  const Span before = std::exchange(span, Span::kClosed);
  if (before == Span::kLost) lose_event();
  if (before != Span::kOpen) return;
  Row& row = *rows_[index];
  record.row = index;
  record.time = std::max(record.time, row.last_time);
  row.last_time = record.time;
  --set_aside_;
  push(record);
}

void Timeline::end_negotiation(std::uint32_t index, Nanos t) {
  close_span(index, rows_[index]->negotiation, {.time = t, .kind = EventKind::kSpanEnd});
}

void Timeline::end_activity(std::uint32_t index, Nanos t) {
  close_span(index, rows_[index]->activity, {.time = t, .kind = EventKind::kSpanEnd});
}

void Timeline::begin_waiting_negotiation(std::uint32_t index) {
  Row& row = *rows_[index];
  row.negotiation_waits = false;
  row.negotiation = open_span(index, {.time = row.waiting_time,
                                      .kind = EventKind::kNegotiateStart,
                                      .detail = static_cast<std::uint8_t>(row.waiting_kind)});
}

bool Timeline::push(const EventRecord& record, std::string_view text, std::size_t set_aside) {
  const std::size_t slots = EventRing::slots_for(text);
  if (!ring_->has_room(slots + set_aside_ + set_aside)) {
    lose_event();
    return false;
  }
  ring_->push(record, text);
  // Half full at the last check of the consumer: wake it before the ring is full.
  const std::size_t half = ring_->capacity() / 2;
  if (ring_->used() >= half && ring_->used() - slots < half) writer_->wake();
  return true;
}

}  // namespace hvdtune
