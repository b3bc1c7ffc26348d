#include "observe/trace/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "observe/trace/file_claim.h"
#include "observe/trace/trace_format.h"

namespace hvdtune {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // since Linux 5.14; older kernels refuse it harmlessly
#endif

constexpr std::size_t kBlanksAtOnce = 65536;
/// Blanks after the array, already allocated on the disk: room for the event that says the disk is
/// full.
constexpr std::size_t kReserve = 512;
constexpr std::size_t kLongestReason = 200;

std::string error_text(int code) { return std::strerror(code); }

/// The error in plain words, and the system's text.
std::string reason_of(int code) {
  const char* words = nullptr;
  if (code == ENOSPC) words = "the disk was full";
  if (code == EDQUOT) words = "the disk quota was used up";
  if (code == EFBIG) words = "the file reached the size limit of this process";
  if (code == EIO) words = "the disk failed";
  return words == nullptr ? error_text(code) : std::string(words) + " (" + error_text(code) + ")";
}

}  // namespace

TraceFile::~TraceFile() {
  close();
  close_files();
}

std::string TraceFile::open(const std::string& path, std::string_view elements, int rank,
                            int claimed) {
  close();
  close_files();
  file_ = claimed;
  path_ = path;
  rank_ = rank;
  const auto failed = [this](const std::string& what) {
    close_files();
    return error_ = cannot_write(path_, what);
  };
  error_.clear();
  if (path.ends_with(".gz")) return failed(std::string(kNotCompressed));
  if (file_ < 0) file_ = open_to_record(path, 0);
  if (file_ < 0) return failed(error_text(errno));
  struct stat info{};
  if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) return failed("not a regular file");
  if (const auto user = lock_file(file_)) return failed("it is in use by " + *user);
  staging_ = memfd_create("hvdtune-timeline", MFD_CLOEXEC);
  text_ = "[\n";
  text_ += elements;
  text_ += ']';
  if (ftruncate(file_, 0) != 0 || !write_at(0, text_) ||
      !extend_with_spaces(text_.size(), kReserve)) {
    return failed(error_text(errno));
  }
  end_ = text_.size();
  return {};
}

// A write(2) of more than one page can be cut short by SIGKILL between two pages, which would leave
// a file that ends in the middle of an event. A read(2) from memory into pages that are already
// mapped is not interrupted. So the file is first extended with blanks, which JSON allows after the
// array; this also shows whether the disk has room. Then one such copy writes everything from the
// old bracket to the new one.
bool TraceFile::append(std::string_view elements, std::string_view more) {
  if (end_ == 0) return false;
  if (const std::string what = what_others_did(); !what.empty()) {
    error_ = cannot_write(path_, what);
    end_ = 0;  // nothing of it belongs to us
    close();
    return false;
  }
  text_.assign(elements);
  text_ += more;
  text_ += ']';
  const std::size_t at = end_ - 1;
  const bool ok = extend_with_spaces(end_ + kReserve, text_.size() - 1) &&
                  (copy_unkillably(at, text_) || write_at(at, text_));
  if (ok) {
    end_ = at + text_.size();
    return true;
  }
  const int code = errno;
  error_ = cannot_write(path_, error_text(code));
  cut_off(reason_of(code), code);
  return false;
}

/// Why the file does not belong to this process alone any more, if so.
std::string TraceFile::what_others_did() const {
  struct stat info{};
  if (fstat(file_, &info) != 0) return error_text(errno);
  if (info.st_nlink == 0) return "it has been removed";
  if (static_cast<std::size_t>(info.st_size) != end_ + kReserve) {
    return "another process has changed it";
  }
  // The lock is lost when this process closes any other descriptor of the file, such as a reader's.
  const auto user = lock_again(file_);
  return user ? "it is in use by " + *user : std::string();
}

bool TraceFile::extend_with_spaces(std::size_t from, std::size_t count) {
  static const std::string blanks(kBlanksAtOnce, ' ');
  for (std::size_t done = 0; done < count;) {
    const std::size_t part = std::min(count - done, blanks.size());
    if (!write_at(from + done, std::string_view(blanks).substr(0, part))) return false;
    done += part;
  }
  return true;
}

bool TraceFile::copy_unkillably(std::size_t at, std::string_view text) {
  if (staging_ < 0) return false;
  if (pwrite(staging_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return false;
  }
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t base = at / page * page;
  const std::size_t length = at - base + text.size();
  void* memory =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(base));
  if (memory == MAP_FAILED) return false;
  madvise(memory, length, kPopulateWrite);
  // A system call, not memcpy: if the file shrank or its disk failed, this returns an error, while
  // touching the memory would raise SIGBUS.
  const ssize_t copied = pread(staging_, static_cast<char*>(memory) + (at - base), text.size(), 0);
  munmap(memory, length);
  return copied == static_cast<ssize_t>(text.size());
}

bool TraceFile::write_at(std::size_t at, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = pwrite(file_, text.data(), text.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = ENOSPC;
      return false;
    }
    at += static_cast<std::size_t>(written);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Overwrites blanks that are already allocated on the disk, so this needs no room.
void TraceFile::cut_off(std::string_view why, int code) {
  if (end_ == 0) return;
  std::string words = ",\n{\"name\":\"hvdtune_cut_off\",\"ph\":\"M\",\"pid\":";
  words += std::to_string(rank_) + ",\"args\":{\"errno\":" + std::to_string(code);
  words += ",\"reason\":\"";
  append_json_escaped(words, why.substr(0, kLongestReason));
  words += "\"}}]";
  const std::size_t bracket = end_ - 1;
  if (words.size() > kReserve || !write_at(bracket, words)) {
    write_at(bracket, "]");
  } else {
    end_ = bracket + words.size();
  }
  close();
}

void TraceFile::close() {
  // Cut everything after the array. If this fails, the rest is blank, or was never part of the
  // array.
  if (end_ > 0 && ftruncate(file_, static_cast<off_t>(end_)) != 0 && error_.empty()) {
    error_ = cannot_write(path_, error_text(errno));
  }
  if (staging_ >= 0) ::close(staging_);
  staging_ = -1;
  end_ = 0;
}

void TraceFile::close_files() {
  if (file_ >= 0) ::close(file_);
  if (staging_ >= 0) ::close(staging_);
  file_ = staging_ = -1;
}

}  // namespace hvdtune
