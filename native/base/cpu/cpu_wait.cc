#include "base/cpu/cpu_wait.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace hvdtune {

namespace {

Fd open_counts(const char* path) { return Fd(::open(path, O_RDONLY | O_CLOEXEC)); }

/// The file has three numbers: ns on a CPU, ns ready without one, and turns. All are 0 before the
/// first turn, and if the kernel has its counting disabled.
std::optional<Nanos> second_number(const Fd& file) {
  std::array<char, 96> text{};
  const ssize_t got = file.valid() ? ::pread(file.get(), text.data(), text.size(), 0) : 0;
  if (got <= 0) return std::nullopt;
  const std::string_view line(text.data(), static_cast<std::size_t>(got));
  if (line.starts_with("0 0 0")) return std::nullopt;
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  Nanos waited = 0;
  const auto end = std::from_chars(line.data() + space + 1, line.data() + line.size(), waited);
  if (end.ec != std::errc{}) return std::nullopt;
  return waited;
}

}  // namespace

std::optional<Nanos> cpu_wait_of_main_thread(int pid) {
  return second_number(open_counts(("/proc/" + std::to_string(pid) + "/schedstat").c_str()));
}

std::optional<Nanos> cpu_wait_of_this_thread() {
  // An open file always describes the thread that opened it, even in a forked child.
  thread_local Fd file;
  thread_local pid_t of_process = 0;
  if (!file.valid() || of_process != getpid()) {
    of_process = getpid();
    file = open_counts("/proc/thread-self/schedstat");
  }
  return second_number(file);
}

}  // namespace hvdtune
