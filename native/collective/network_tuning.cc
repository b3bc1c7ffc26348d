#include "collective/network_tuning.h"

#include <algorithm>
#include <cstdint>

#include "collective/kernels/reduction.h"

namespace hvdtune {

NetworkSizes network_sizes(const Tuning& tuning, const NetworkTraits& traits, std::size_t members) {
  constexpr std::size_t kAllChunks = 2 << 20;
  constexpr std::size_t kLeastChunk = 16 << 10;
  constexpr std::size_t kLargestChunk = 4 << 20;
  const auto chosen = [](std::int64_t wanted, std::size_t otherwise) {
    return wanted > 0 ? static_cast<std::size_t>(wanted) : otherwise;
  };
  const std::size_t standard = std::clamp(kAllChunks / members, kLeastChunk, traits.most_chunk);
  const std::size_t chunk = std::min(chosen(tuning.chunk_size, standard), kLargestChunk);
  // A one-shot allreduce sends (n-1)(1 - 2/n) times the message's bytes more than sending shares
  // twice. Two members send the same either way.
  const std::size_t limit = members <= 2
                                ? 8 * traits.journey
                                : traits.journey * members / ((members - 1) * (members - 2));
  return {std::max(chunk / kCacheLine, std::size_t{1}) * kCacheLine,
          chosen(tuning.one_shot_limit, limit)};
}

}  // namespace hvdtune
