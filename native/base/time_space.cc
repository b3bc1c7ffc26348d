#include "base/time_space.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace hvdtune {

std::string time_space(int pid) {
  const std::string process = pid == 0 ? "self" : std::to_string(pid);
  std::array<char, 64> text{};
  const ssize_t length =
      readlink(("/proc/" + process + "/ns/time").c_str(), text.data(), text.size());
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

}  // namespace hvdtune
