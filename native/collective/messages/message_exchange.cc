#include "collective/messages/message_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace hvdtune {
namespace {

// How long to wait for the reason of a failed message: the liveness watch also notices the death of
// a peer, and knows its name.
constexpr Nanos kReasonTime = 2 * kSecond;

}  // namespace

MessageExchange::MessageExchange(std::unique_ptr<Messenger> messenger, MessageGroup group)
    : messenger_(std::move(messenger)), group_(std::move(group)) {}

MessageExchange::~MessageExchange() {
  bool failed = false;
  try {
    group_.check();
  } catch (const Error&) {
    failed = true;
  }
  if (messenger_->abandon(failed)) return;
  // The library may still write to this memory, so it is leaked when the job is given up.
  [[maybe_unused]] const auto* lost_out = outgoing_.release();
  [[maybe_unused]] const auto* lost_in = incoming_.release();
}

std::byte* MessageExchange::grown(Memory& memory, std::size_t bytes) {
  if (!memory) memory = std::make_unique<std::vector<std::byte>>();
  if (memory->size() < bytes) memory->resize(bytes);
  return memory->data();
}

/// Calls the library. If it throws, throws the job's own reason instead if there is one.
template <typename Call>
auto MessageExchange::calling(Call&& call) {
  try {
    return call();
  } catch (const Error&) {
    const Nanos until = monotonic_now() + kReasonTime;
    do {
      group_.check();
      messenger_->doze();
    } while (monotonic_now() < until);
    throw;
  }
}

void MessageExchange::send(std::size_t batch, std::size_t member, const std::byte* data,
                           std::size_t bytes) {
  if (bytes > 0) calling([&] { messenger_->send(batch, member, data, bytes); });
}

void MessageExchange::receive(std::size_t batch, std::size_t member, std::byte* data,
                              std::size_t bytes) {
  if (bytes > 0) calling([&] { messenger_->receive(batch, member, data, bytes); });
}

void MessageExchange::wait(std::size_t batch) {
  if (calling([&] { return messenger_->test(batch); })) return;
  const Nanos began = timed_ ? monotonic_now() : 0;
  sleep(batch);
  if (timed_) waited_ += monotonic_now() - began;
}

void MessageExchange::sleep(std::size_t batch) {
  const auto ready = [&] { return messenger_->test(batch); };
  if (calling([&] { return group_.patience.wait(ready); })) return;
  const Nanos began = monotonic_now();
  reported_ = began;
  while (!calling(ready)) {
    group_.check();
    if (seen_ != nullptr) seen_->store(monotonic_now(), std::memory_order_relaxed);
    messenger_->doze();
    if (absence_limit_ != kForever) look_for_absent(batch, began);
  }
}

void MessageExchange::time_waits(bool timed) {
  timed_ = timed;
  waited_ = 0;
}

void MessageExchange::report_absence(Nanos limit, AbsenceReport report) {
  absence_limit_ = limit;
  report_ = std::move(report);
}

/// All waiting members see about the same; the first of them reports.
void MessageExchange::look_for_absent(std::size_t batch, Nanos began) {
  const Nanos now = monotonic_now();
  if (now - reported_ < absence_limit_) return;
  reported_ = now;
  const std::vector<std::size_t> missing = messenger_->missing(batch);
  for (std::size_t member = 0; member < self(); ++member) {
    if (std::find(missing.begin(), missing.end(), member) == missing.end()) return;
  }
  std::vector<int> ranks;
  for (const std::size_t member : missing) ranks.push_back(group_.ranks[member]);
  if (!ranks.empty()) report_(ranks, now - began);
}

}  // namespace hvdtune
