#include "base/cpu_wait.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace hvdtune {

namespace {

/// The file has three numbers: ns on a CPU, ns ready without one, and turns.
std::optional<Nanos> second_number(const char* path) {
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 96> text{};
  const ssize_t got = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  if (got <= 0) return std::nullopt;
  const std::string_view line(text.data(), static_cast<std::size_t>(got));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  Nanos waited = 0;
  const auto end = std::from_chars(line.data() + space + 1, line.data() + line.size(), waited);
  if (end.ec != std::errc{}) return std::nullopt;
  return waited;
}

}  // namespace

std::optional<Nanos> cpu_wait_of_main_thread(int pid) {
  return second_number(("/proc/" + std::to_string(pid) + "/schedstat").c_str());
}

std::optional<Nanos> cpu_wait_of_this_thread() {
  return second_number("/proc/thread-self/schedstat");
}

}  // namespace hvdtune
