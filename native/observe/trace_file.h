#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hvdtune {

/// A file that holds one complete JSON array at every moment, also if the process is killed while
/// it is being written. Used by one thread at a time.
class TraceFile {
 public:
  TraceFile() = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

  /// Creates or empties `path` and writes "[\n" + `elements` + "]". Returns an error text, or an
  /// empty string. The path must lead to a regular file.
  std::string open(const std::string& path, std::string_view elements);

  /// Puts `elements` and `more`, each beginning with a comma, before the closing bracket. After a
  /// failure, the file holds what it held before, error() says why, and nothing more can be
  /// appended.
  bool append(std::string_view elements, std::string_view more = {});

  /// Does nothing if not open.
  void close();

  /// Of the array, both brackets included; 0 if not open.
  [[nodiscard]] std::size_t bytes() const { return end_; }
  /// The file was given another name, which errors are to tell.
  void moved_to(const std::string& path) { path_ = path; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  bool extend_with_spaces(std::size_t from, std::size_t count);
  bool copy_unkillably(std::size_t at, std::string_view text);
  bool write_at(std::size_t at, std::string_view text);
  bool fail(const std::string& what);

  std::string path_;
  std::string error_;
  std::string text_;  // elements and bracket of the append in progress
  int file_ = -1;
  int staging_ = -1;     // memfd
  std::size_t end_ = 0;  // just behind the closing bracket
};

}  // namespace hvdtune
