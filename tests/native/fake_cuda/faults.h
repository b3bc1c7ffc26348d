#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

// What the fake libraries are told to do wrong: the environment variable HVDTUNE_FAKE_CUDA, words
// with commas between them, each "name" or "name=number". Looked at whenever it matters, so that a
// test can change it on the way. README.md lists the names.

namespace fake_cuda {

inline std::optional<long> fault(std::string_view name) {
  const char* const all = std::getenv("HVDTUNE_FAKE_CUDA");
  std::string_view rest = all == nullptr ? "" : all;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(word.size() == rest.size() ? word.size() : word.size() + 1);
    const std::size_t sign = word.find('=');
    if (word.substr(0, sign) != name) continue;
    if (sign == std::string_view::npos) return 1;
    return std::strtol(std::string(word.substr(sign + 1)).c_str(), nullptr, 10);
  }
  return {};
}

inline long setting(std::string_view name, long otherwise) {
  return fault(name).value_or(otherwise);
}

}  // namespace fake_cuda
