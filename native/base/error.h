#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace hvdtune {

/// The kinds of errors that callers treat differently.
enum class ErrorKind : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  ///< the caller's arguments; found locally, other ranks are not involved
  kMismatch = 2,         ///< ranks disagree about a tensor; every rank gets the same text
  kAborted = 3,          ///< a peer died or the transport failed; the job cannot go on
  kShutdown = 4,         ///< the job was shut down while the operation was waiting
  kNotInitialized = 5,
  kTimeout = 6,
};

/// Outcome of an operation: kOk, or a kind with one sentence for the user.
struct Status {
  ErrorKind kind = ErrorKind::kOk;
  std::string text;

  [[nodiscard]] bool ok() const { return kind == ErrorKind::kOk; }
};

/// An error that a user can cause. Bugs are assertions (see check.h), never this.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  explicit Error(const Status& status) : Error(status.kind, status.text) {}

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] Status status() const { return {kind_, what()}; }

 private:
  ErrorKind kind_;
};

}  // namespace hvdtune
