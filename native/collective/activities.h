#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/op_kind.h"

namespace hvdtune {

/// The timeline's names of the exchanges over one data plane: "SHM_ALLREDUCE", and for a broadcast
/// Horovod's "SHM_BCAST". Operations that exchange no data have the plane's name. The names live as
/// long as this object, so it must have static storage.
class Activities {
 public:
  explicit constexpr Activities(std::string_view plane) {
    for (int number = 0; number < kOpKindCount; ++number) {
      const auto kind = static_cast<OpKind>(number);
      char* end = std::ranges::copy(plane, names_[number].begin()).out;
      if (kind >= OpKind::kJoin) continue;
      *end++ = '_';
      std::ranges::copy(kind == OpKind::kBroadcast ? std::string_view("BCAST") : op_kind_name(kind),
                        end);
    }
  }

  [[nodiscard]] constexpr const char* of(OpKind kind) const {
    return names_[static_cast<std::size_t>(kind)].data();
  }

 private:
  static constexpr std::size_t kLongest = 32;  // with the zero; the compiler refuses a longer one

  std::array<std::array<char, kLongest>, kOpKindCount> names_{};
};

}  // namespace hvdtune
