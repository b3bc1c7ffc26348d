#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "observe/trace/trace_file.h"

namespace hvdtune::capture {

/// Appends a metadata event of `rank` up to its args, after a comma.
void append_event(std::string& out, std::string_view name, int rank);

/// A trace file with an optional limit: beyond it, the oldest blocks of records are dropped. Used
/// by one thread at a time.
class CaptureFile {
 public:
  /// Creates or empties `path`. `identity`: the first event. \param limit bytes; 0 = none.
  /// \param claimed see TraceFile::open. Returns an error text, or an empty string.
  std::string open(const std::string& path, int rank, std::string_view identity, std::size_t limit,
                   int claimed);

  /// Appends events, each preceded by a comma; `lasting` ones are never dropped. See
  /// TraceFile::append.
  bool append(std::string_view lasting, std::string_view blocks);

  void close() { file_->close(); }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  struct Piece {
    std::size_t begin;
    std::size_t bytes;
    bool lasting;
  };

  void note(std::string_view text, std::size_t begin, bool lasting);
  bool drop_oldest();
  [[nodiscard]] std::vector<Piece> kept_pieces() const;
  bool fail(const std::string& error);

  std::unique_ptr<TraceFile> file_ = std::make_unique<TraceFile>();
  std::string path_;
  std::string real_path_;  // path_ without symbolic links
  int rank_ = 0;
  std::string identity_;
  std::string error_;
  std::size_t limit_ = 0;
  std::uint64_t blocks_dropped_ = 0;
  std::vector<Piece> pieces_;  // after the identity; only with a limit
};

}  // namespace hvdtune::capture
