#include "observe/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace hvdtune {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // since Linux 5.14; older kernels refuse it harmlessly
#endif

constexpr std::size_t kBlanksAtOnce = 65536;

std::string error_text(int code) { return std::strerror(code); }

}  // namespace

TraceFile::~TraceFile() { close(); }

std::string TraceFile::open(const std::string& path, std::string_view elements) {
  close();
  path_ = path;
  error_.clear();
  if (path.ends_with(".gz")) {
    fail("it is not compressed, and the name ends in .gz");
    return error_;
  }
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file_ < 0) {
    fail(error_text(errno));
    return error_;
  }
  struct stat info{};
  if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file_);
    file_ = -1;
    fail("not a regular file");
    return error_;
  }
  staging_ = memfd_create("hvdtune-timeline", MFD_CLOEXEC);
  text_ = "[\n";
  text_ += elements;
  text_ += ']';
  if (ftruncate(file_, 0) != 0 || !write_at(0, text_)) {
    fail(error_text(errno));
    close();
    return error_;
  }
  end_ = text_.size();
  return {};
}

// A write(2) of more than one page can be cut short by SIGKILL between two pages, which would
// leave a file that ends in the middle of an event. A read(2) from memory into pages that are
// already mapped is not interrupted. So the file is first made longer by blanks, which JSON allows
// behind the array and which also finds out whether the disk has room, and then everything from
// the old bracket to the new one appears in one such copy.
bool TraceFile::append(std::string_view elements, std::string_view more) {
  if (file_ < 0) return false;
  text_.assign(elements);
  text_ += more;
  text_ += ']';
  const std::size_t at = end_ - 1;
  const bool ok = extend_with_spaces(end_, text_.size() - 1) &&
                  (copy_unkillably(at, text_) || write_at(at, text_));
  if (ok) {
    end_ = at + text_.size();
    return true;
  }
  fail(error_text(errno));
  close();
  return false;
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
  // By a system call, not memcpy: if the file shrank or its disk failed, this returns an error
  // where touching the memory would raise SIGBUS.
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

bool TraceFile::fail(const std::string& what) {
  error_ = "cannot write the timeline to " + path_ + ": " + what;
  // Blocks that exist already: this needs no room.
  if (file_ >= 0 && end_ > 0 && write_at(end_ - 1, "]") &&
      ftruncate(file_, static_cast<off_t>(end_)) != 0) {
    error_ += "; the file may end in blanks";
  }
  return false;
}

void TraceFile::close() {
  if (file_ >= 0) ::close(file_);
  if (staging_ >= 0) ::close(staging_);
  file_ = staging_ = -1;
  end_ = 0;
}

}  // namespace hvdtune
