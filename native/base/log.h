#pragma once

#include <optional>
#include <sstream>
#include <string_view>

namespace hvdtune {

/// Severity of a message, in rising order. kFatal is only a label: logging never ends the process.
enum class LogLevel : int { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

/// How the process logs. Native code reads no environment; the Python side fills this in.
struct LogOptions {
  LogLevel level = LogLevel::kWarning;  ///< the least severe level that is printed
  bool hide_time = false;               ///< leave the time out of each line
  std::optional<int> rank = {};         ///< printed with messages that name no rank of their own
};

/// Process-wide logging. All functions may be called from any thread at any time.
///
/// A line is `[2026-01-31 23:59:59.000123: W file.cc:12] [3]: message`, in local time. Trace, debug
/// and info go to stdout, the rest to stderr; each message is one write(2), so that lines from
/// several processes do not mix on one terminal.
class Logger {
 public:
  /// Takes effect for messages that begin after the call.
  static void configure(const LogOptions& options);

  /// One relaxed atomic load.
  static bool enabled(LogLevel level) noexcept;

  /// Formats and writes one message. Output that cannot be written is lost silently.
  static void write(LogLevel level, std::string_view file, int line, std::optional<int> rank,
                    std::string_view message);
};

/// "trace" … "fatal" in any case; nothing for other words.
std::optional<LogLevel> parse_log_level(std::string_view name);

/// Collects what is streamed into it and writes it when destroyed. Use HVD_LOG instead.
class LogMessage {
 public:
  LogMessage(LogLevel level, const char* file, int line, std::optional<int> rank = {})
      : level_(level), file_(file), line_(line), rank_(rank) {}
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;
  ~LogMessage() { Logger::write(level_, file_, line_, rank_, text_.view()); }

  std::ostream& stream() { return text_; }

 private:
  LogLevel level_;
  const char* file_;
  int line_;
  std::optional<int> rank_;
  std::ostringstream text_;
};

}  // namespace hvdtune

/// HVD_LOG(kWarning) << "text" << value;  The operands are evaluated only if the level is enabled.
#define HVD_LOG(level)                                           \
  if (!::hvdtune::Logger::enabled(::hvdtune::LogLevel::level)) { \
  } else /* NOLINT(readability-misleading-indentation) */        \
    ::hvdtune::LogMessage(::hvdtune::LogLevel::level, __FILE__, __LINE__).stream()

/// The same for a message of one rank: several ranks may be threads of one process.
#define HVD_LOG_RANK(level, rank)                                \
  if (!::hvdtune::Logger::enabled(::hvdtune::LogLevel::level)) { \
  } else /* NOLINT(readability-misleading-indentation) */        \
    ::hvdtune::LogMessage(::hvdtune::LogLevel::level, __FILE__, __LINE__, (rank)).stream()
