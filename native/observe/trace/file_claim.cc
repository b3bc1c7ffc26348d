#include "observe/trace/file_claim.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

namespace hvdtune {
namespace {

std::filesystem::path with_name(const std::string& path, const std::string& inserted) {
  std::filesystem::path changed(path);
  const std::string name = changed.stem().string() + inserted + changed.extension().string();
  return changed.replace_filename(name);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

/// Whether a process is joining the file with others. It holds a lock of the other kind. Trying a
/// shared lock shows that, and two processes that try at once do not see each other. Some network
/// file systems have only one kind, so the shared lock is taken first, and released again.
bool is_being_joined(int file) {
  if (flock(file, LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  flock(file, LOCK_UN);
  return false;
}

constexpr const char* kJoiner = "a process that joins it with other ranks' files";

struct flock whole_file() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// The user of an open file, if it is another process. Holds no lock meanwhile: the file's owner
/// may be about to lock it.
std::optional<std::string> user_of(int file) {
  if (is_being_joined(file)) return kJoiner;
  struct flock lock = whole_file();
  if (fcntl(file, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return {};
  if (lock.l_pid <= 0) return "another job";
  return "another job (process " + std::to_string(lock.l_pid) + ")";
}

/// The user of a file of ranks 1 … size - 1, if another job uses any.
std::string user_of_others(const std::string& path, int size) {
  for (int rank = 1; rank < size; ++rank) {
    const int file = ::open(path_of_rank(path, rank).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) continue;
    const auto user = user_of(file);
    ::close(file);
    if (user) return *user;
  }
  return {};
}

bool nothing_there(const std::string& path, int size) {
  if (exists(path) || exists(path + ".gz")) return false;
  for (int rank = 1; rank < size; ++rank) {
    if (exists(path_of_rank(path, rank))) return false;
  }
  return true;
}

}  // namespace

std::string cannot_write(const std::string& path, const std::string& what) {
  return "cannot write the timeline to " + path + ": " + what;
}

int open_to_record(const std::string& path, int more) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | more;
  int file = ::open(path.c_str(), flags, 0666);
  if (file >= 0 || errno != ENOENT) return file;
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  file = ::open(path.c_str(), flags, 0666);
  if (file < 0 && failed) errno = failed.value();
  return file;
}

std::optional<std::string> lock_file(int file) {
  if (is_being_joined(file)) return kJoiner;
  return lock_again(file);
}

std::optional<std::string> lock_again(int file) {
  struct flock lock = whole_file();
  if (fcntl(file, F_SETLK, &lock) == 0 || (errno != EACCES && errno != EAGAIN)) return {};
  return user_of(file).value_or("another job");
}

std::string path_of_rank(const std::string& path, int rank) {
  return rank == 0 ? path : with_name(path, ".rank" + std::to_string(rank)).string();
}

std::string numbered_path(const std::string& path, int number) {
  return number == 1 ? path : with_name(path, "-" + std::to_string(number)).string();
}

std::string FileClaim::take(const std::string& path, int size, bool ours) {
  release();
  user_.clear();
  if (path.ends_with(".gz")) return cannot_write(path, std::string(kNotCompressed));
  for (int number = 1; number <= kMostNumbers; ++number) {
    path_ = numbered_path(path, number);
    const bool first = number == 1;
    if (first) {
      user_ = user_of_others(path_, ours ? 1 : size);
      if (!user_.empty()) continue;
    } else if (!nothing_there(path_, size)) {
      continue;
    }
    file_ = open_to_record(path_, first ? 0 : O_EXCL);
    if (file_ < 0 && errno == EEXIST) continue;
    if (file_ < 0) return cannot_write(path_, std::strerror(errno));
    const auto user = lock_file(file_);
    if (!user) return {};
    if (first) user_ = *user;
    release();
  }
  return cannot_write(path, "it is in use by " + user_ + ", and no name like it is free");
}

void FileClaim::release() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

}  // namespace hvdtune
