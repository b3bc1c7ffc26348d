#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <string>

namespace hvdtune {
namespace {

constexpr int kNoRank = -1;
constexpr std::array<std::string_view, 6> kLevelNames = {"trace",   "debug", "info",
                                                         "warning", "error", "fatal"};
constexpr std::string_view kLevelLetters = "TDIWEF";

std::atomic<LogLevel> process_level{LogLevel::kWarning};
std::atomic<bool> process_hides_time{false};
std::atomic<int> process_rank{kNoRank};

std::string local_time_text() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm fields{};
  localtime_r(&now.tv_sec, &fields);
  std::array<char, 32> seconds{};
  const std::size_t length = strftime(seconds.data(), seconds.size(), "%Y-%m-%d %H:%M:%S", &fields);
  std::array<char, 32> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%06ld", now.tv_nsec / 1000);
  return std::string(seconds.data(), length) + fraction.data();
}

/// Writes everything, unless the descriptor is closed or nobody reads from it for a second.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return;
    pollfd wait{descriptor, POLLOUT, 0};
    if (::poll(&wait, 1, 1000) <= 0) return;
  }
}

}  // namespace

void Logger::configure(const LogOptions& options) {
  process_hides_time.store(options.hide_time, std::memory_order_relaxed);
  process_rank.store(options.rank.value_or(kNoRank), std::memory_order_relaxed);
  process_level.store(options.level, std::memory_order_relaxed);
}

bool Logger::enabled(LogLevel level) noexcept {
  return level >= process_level.load(std::memory_order_relaxed);
}

void Logger::write(LogLevel level, std::string_view file, int line, std::optional<int> rank,
                   std::string_view message) {
  const int shown_rank = rank.value_or(process_rank.load(std::memory_order_relaxed));
  std::string text = "[";
  if (!process_hides_time.load(std::memory_order_relaxed)) text += local_time_text() + ": ";
  text += kLevelLetters[static_cast<std::size_t>(level)];
  text += ' ';
  text += file.substr(file.rfind('/') + 1);  // npos + 1 == 0: no directory, the whole name
  text += ':' + std::to_string(line) + "] ";
  if (shown_rank != kNoRank) text += '[' + std::to_string(shown_rank) + "]: ";
  text += message;
  text += '\n';
  write_all(level >= LogLevel::kWarning ? STDERR_FILENO : STDOUT_FILENO, text);
}

std::optional<LogLevel> parse_log_level(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const auto found = std::find(kLevelNames.begin(), kLevelNames.end(), lower);
  if (found == kLevelNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kLevelNames.begin());
}

}  // namespace hvdtune
