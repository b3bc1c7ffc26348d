#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hvdtune {

/// Why no file whose name ends in .gz is recorded to.
inline constexpr std::string_view kNotCompressed = "it is not compressed, and the name ends in .gz";

/// Why a timeline cannot be recorded, as a sentence without its end.
std::string cannot_write(const std::string& path, const std::string& what);

/// Opens a file to record to, for reading and writing; makes it, and its folder, where they are not
/// there. `more`: O_EXCL or 0. -1 = errno tells why not.
int open_to_record(const std::string& path, int more);

/// Makes an open file this process's to record to, until it closes any descriptor of it or ends; a
/// forked child has no share in that. Returns who uses it, if another process does: it records
/// to it, or joins it with other files. A file system without locks refuses nobody.
std::optional<std::string> lock_file(int file);

/// A file that a recording is to begin in soon, held for this process. Not changed, but created if
/// it was not there.
class FileClaim {
 public:
  FileClaim() = default;
  FileClaim(const FileClaim&) = delete;
  FileClaim& operator=(const FileClaim&) = delete;
  ~FileClaim() { release(); }

  /// Claims `path`; where another job uses it, or one of the files of the ranks 1 … size - 1 beside
  /// it, the first of t-2.json, t-3.json … of which nothing is there. Returns an error text, or an
  /// empty string.
  std::string take(const std::string& path, int size);
  /// The file that was claimed.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Who uses the file that was asked for, if another one was claimed.
  [[nodiscard]] const std::string& user() const { return user_; }
  /// Others may have it from now on.
  void release();
  /// Gives the open file away, with the hold on it; -1 if none is held. Closing any other
  /// descriptor of the file in this process ends the hold.
  [[nodiscard]] int hand_over() { return std::exchange(file_, -1); }

 private:
  std::string path_;
  std::string user_;
  int file_ = -1;
};

/// The file of a rank: rank 0's is `path`; "t.json" becomes "t.rank3.json" on rank 3.
std::string path_of_rank(const std::string& path, int rank);
/// "t.json" becomes "t-2.json" for number 2, and stays for 1.
std::string numbered_path(const std::string& path, int number);
/// Files that are tried one after the other where others are in use.
inline constexpr int kMostNumbers = 1000;

}  // namespace hvdtune
