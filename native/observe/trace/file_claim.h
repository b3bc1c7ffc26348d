#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hvdtune {

/// Why a recording cannot use a file whose name ends in .gz.
inline constexpr std::string_view kNotCompressed = "it is not compressed, and the name ends in .gz";

/// Why a timeline cannot be recorded, as a sentence without a full stop.
std::string cannot_write(const std::string& path, const std::string& what);

/// Opens a file to record to, for reading and writing; creates it and its folder if they do not
/// exist. `more`: O_EXCL or 0. Returns -1 on failure, with errno.
int open_to_record(const std::string& path, int more);

/// Locks an open file for this process's recording, until it closes any descriptor of the file or
/// ends; a forked child does not inherit the lock. If another process uses the file, returns which:
/// it records to it, or joins it with other files. A file system without locks refuses nobody.
std::optional<std::string> lock_file(int file);
/// The same for a file that this process records to, and whose lock it may have lost. A process
/// that wants to join it meanwhile changes nothing, and is not named.
std::optional<std::string> lock_again(int file);

/// A file for a recording that begins soon, held for this process. It is not changed, but created
/// if it does not exist.
class FileClaim {
 public:
  FileClaim() = default;
  FileClaim(const FileClaim&) = delete;
  FileClaim& operator=(const FileClaim&) = delete;
  ~FileClaim() { release(); }

  /// Claims `path`; if another job uses it, or one of the files of the ranks 1 … size - 1 beside
  /// it, claims the first of t-2.json, t-3.json … that does not exist, for any rank. If
  /// `path` is `ours`, this job has recorded to it before, and its ranks may still hold their
  /// files. Returns an error text, or an empty string.
  std::string take(const std::string& path, int size, bool ours = false);
  /// The file that was claimed.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// The user of the requested file, if another one was claimed.
  [[nodiscard]] const std::string& user() const { return user_; }
  /// Releases the file for others.
  void release();
  /// Hands over the open file with its lock; -1 if none is held. Closing any other descriptor of
  /// the file in this process ends the lock.
  [[nodiscard]] int hand_over() { return std::exchange(file_, -1); }

 private:
  std::string path_;
  std::string user_;
  int file_ = -1;
};

/// The file of a rank: rank 0's is `path`; "t.json" becomes "t.rank3.json" on rank 3.
std::string path_of_rank(const std::string& path, int rank);
/// "t.json" becomes "t-2.json" for number 2, and is unchanged for 1.
std::string numbered_path(const std::string& path, int number);
/// The most names that are tried if files are in use.
inline constexpr int kMostNumbers = 1000;

}  // namespace hvdtune
