#include "transport/control/clock_sync.h"

#include <algorithm>

#include "wire/codec.h"

namespace hvdtune {
namespace {

constexpr char kAsk = 'c';
constexpr char kAnswer = 'C';
// How long a burst may take: a stopped rank 0 never answers.
constexpr Nanos kPatience = kSecond;

struct RoundTrip {
  std::uint32_t number = 0;
  Nanos t0 = 0;
  Nanos t1 = 0;
  Nanos t2 = 0;

  [[nodiscard]] std::string encode(char type) const {
    wire::Encoder out;
    out.put(type).put(number).put(t0).put(t1).put(t2);
    return out.take();
  }
  /// Throws DecodeError.
  static RoundTrip decode(std::string_view bytes) {
    wire::Decoder in(bytes);
    in.get<char>();
    RoundTrip trip;
    trip.number = in.get<std::uint32_t>();
    trip.t0 = in.get<Nanos>();
    trip.t1 = in.get<Nanos>();
    trip.t2 = in.get<Nanos>();
    in.finish();
    return trip;
  }
};

}  // namespace

ClockSync::ClockSync(bool is_reference, Send send, std::function<Nanos()> clock)
    : is_reference_(is_reference), send_(std::move(send)), clock_(std::move(clock)) {}

void ClockSync::start() {
  const std::lock_guard lock(mutex_);
  if (is_reference_) {
    readings_.push_back({clock_(), 0, 0});
    return;
  }
  repeating_ = true;
  wanted_ = true;
}

void ClockSync::stop() {
  const std::lock_guard lock(mutex_);
  if (is_reference_) {
    readings_.push_back({clock_(), 0, 0});
    return;
  }
  repeating_ = false;
  wanted_ = true;
}

bool ClockSync::pending() const {
  const std::lock_guard lock(mutex_);
  return wanted_ || left_ > 0;
}

std::vector<ClockReading> ClockSync::readings(std::size_t skip) const {
  const std::lock_guard lock(mutex_);
  const auto from = static_cast<std::ptrdiff_t>(std::min(skip, readings_.size()));
  return {readings_.begin() + from, readings_.end()};
}

/// The caller holds mutex_.
bool ClockSync::ask() { return send_(RoundTrip{++number_, clock_(), 0, 0}.encode(kAsk)); }

/// The caller holds mutex_.
void ClockSync::finish_burst(Nanos now) {
  if (found_) readings_.push_back(best_);
  left_ = 0;
  next_ = repeating_ ? now + kPeriod : kForever;
}

Nanos ClockSync::turn(Nanos now) {
  const std::lock_guard lock(mutex_);
  if (is_reference_) return kForever;
  if (left_ > 0 && now >= gives_up_) finish_burst(now);
  if (left_ == 0 && (wanted_ || (repeating_ && now >= next_))) {
    wanted_ = false;
    found_ = false;
    left_ = kBurst;
    gives_up_ = now + kPatience;
    if (!ask()) finish_burst(now);
  }
  return left_ > 0 ? gives_up_ : next_;
}

bool ClockSync::receive(std::string_view message, const Send& reply) {
  if (message.empty() || (message.front() != kAsk && message.front() != kAnswer)) return false;
  const Nanos arrived = clock_();
  RoundTrip trip;
  try {
    trip = RoundTrip::decode(message);
  } catch (const wire::DecodeError&) {
    return true;
  }
  if (message.front() == kAsk) {
    trip.t1 = arrived;
    trip.t2 = clock_();
    reply(trip.encode(kAnswer));
    return true;
  }
  const std::lock_guard lock(mutex_);
  if (left_ == 0 || trip.number != number_) return true;
  const Nanos round_trip = (arrived - trip.t0) - (trip.t2 - trip.t1);
  // One more nanosecond than half of it: the divisions below round.
  const ClockReading reading{trip.t0 + (arrived - trip.t0) / 2,
                             ((trip.t1 - trip.t0) + (trip.t2 - arrived)) / 2, round_trip / 2 + 1};
  if (round_trip >= 0 && (!found_ || reading.bound < best_.bound)) {
    best_ = reading;
    found_ = true;
  }
  if (--left_ == 0 || !ask()) finish_burst(monotonic_now());
  return true;
}

}  // namespace hvdtune
