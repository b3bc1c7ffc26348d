#include "collective/communicator.h"

namespace hvdtune {

std::vector<std::int64_t> Communicator::exchange(const std::vector<std::int64_t>& mine) {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(size()));
  SegmentList in;
  const std::size_t bytes = mine.size() * sizeof(std::int64_t);
  in.add(const_cast<std::int64_t*>(mine.data()), bytes);  // SegmentList serves both directions
  std::vector<SegmentList> out(static_cast<std::size_t>(size()));
  for (std::size_t member = 0; member < out.size(); ++member) {
    out[member].add(all.data() + member * mine.size(), bytes);
  }
  allgather({in, out});
  return all;
}

}  // namespace hvdtune
