#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hvdtune {

/// A file that holds one complete JSON array at every moment, even if the process is killed during
/// a write. Used by one thread at a time.
class TraceFile {
 public:
  TraceFile() = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

  /// Creates or empties `path` and writes "[\n" + `elements` + "]". Returns an error text, or an
  /// empty string. The path must lead to a regular file, which no other process records to.
  /// \param rank whose file it is
  /// \param claimed the file at `path`, open and locked (FileClaim::hand_over), which this object
  /// owns from now on; -1: open() opens it.
  std::string open(const std::string& path, std::string_view elements, int rank = 0,
                   int claimed = -1);

  /// Puts `elements` and `more`, each beginning with a comma, before the closing bracket. After a
  /// failure, the file has its earlier content and an event `hvdtune_cut_off`, error() returns the
  /// reason, and nothing more can be appended.
  bool append(std::string_view elements, std::string_view more = {});

  /// Does nothing if not open. No other process can record to the file before this object is
  /// destroyed or opens another one, because the file may have to be joined with others first.
  void close();

  /// Ends the array with an event `hvdtune_cut_off` that says why nothing more is written, and
  /// closes the file. `code`: an errno, or 0. Does nothing if not open.
  void cut_off(std::string_view why, int code = 0);

  /// Size of the array, including both brackets; 0 if not open.
  [[nodiscard]] std::size_t bytes() const { return end_; }
  /// The file was renamed; errors show the new name.
  void moved_to(const std::string& path) { path_ = path; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  [[nodiscard]] std::string what_others_did() const;
  bool extend_with_spaces(std::size_t from, std::size_t count);
  bool copy_unkillably(std::size_t at, std::string_view text);
  bool write_at(std::size_t at, std::string_view text);
  void close_files();

  std::string path_;
  int rank_ = 0;
  std::string error_;
  std::string text_;     // elements and bracket of the append in progress
  int file_ = -1;        // locked
  int staging_ = -1;     // memfd
  std::size_t end_ = 0;  // just after the closing bracket; blanks follow. 0: not open
};

}  // namespace hvdtune
