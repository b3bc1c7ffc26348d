#include "faces/places.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "faces/running_engine.h"

namespace hvdtune::faces {
namespace {

std::int32_t size_of(std::uint32_t process_set) {
  const int size = running_engine()->place_in_set(process_set).second;
  if (size == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "there is no process set " + std::to_string(process_set));
  }
  return size;
}

std::int32_t is_included(std::uint32_t process_set) {
  std::pair<int, int> place;
  try {
    place = running_engine()->place_in_set(process_set);
  } catch (const Error&) {
    return -1;
  }
  if (place.second == 0) return -3;
  return place.first >= 0 ? 1 : 0;
}

/// (this rank's index among the ranks of its host, the number of those ranks)
std::pair<int, int> place_on_host() {
  const std::shared_ptr<Engine> engine = running_engine();
  const std::vector<int> hosts = engine->hosts();
  const auto rank = static_cast<std::size_t>(engine->place_in_set(0).first);
  std::pair<int, int> place{0, 0};
  for (std::size_t other = 0; other < hosts.size(); ++other) {
    if (hosts[other] != hosts[rank]) continue;
    if (other < rank) ++place.first;
    ++place.second;
  }
  return place;
}

}  // namespace

std::int32_t place(Place which, std::uint32_t process_set) {
  switch (which) {
    case Place::kSize:
      return size_of(process_set);
    case Place::kIncluded:
      return is_included(process_set);
    case Place::kLocalSize:
      return place_on_host().second;
    case Place::kRank:
      return running_engine()->place_in_set(0).first;
    case Place::kLocalRank:
      return place_on_host().first;
    case Place::kCount:
      break;
  }
  throw Error(ErrorKind::kInvalidArgument, "there is no such number");
}

}  // namespace hvdtune::faces
