#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/operation/operation.h"

namespace hvdtune {

/// Operations by their handle. Handles are counted up, so the low bits find an operation at once,
/// and neighbours are stored side by side. Allocates only when it holds more operations than ever
/// before. Not thread-safe: the engine locks.
class HandleTable {
 public:
  HandleTable() : places_(kFirstPlaces) {}

  /// `handle`: not 0, and not in the table.
  void add(std::int64_t handle, OperationPtr operation) {
    if (2 * (used_ + 1) > places_.size()) grow();
    insert(handle, std::move(operation));
    ++used_;
  }

  /// Null for an unknown handle; valid until the table changes.
  [[nodiscard]] const OperationPtr* find(std::int64_t handle) const {
    for (std::size_t at = home(handle); places_[at].handle != 0; at = after(at)) {
      if (places_[at].handle == handle) return &places_[at].operation;
    }
    return nullptr;
  }

  /// Removes and returns the operation that find() would find, or null.
  OperationPtr take(std::int64_t handle) {
    std::size_t hole = home(handle);
    while (places_[hole].handle != handle) {
      if (places_[hole].handle == 0) return nullptr;
      hole = after(hole);
    }
    OperationPtr taken = std::move(places_[hole].operation);
    displaced_ -= home(handle) == hole ? 0 : 1;
    places_[hole] = {};
    --used_;
    if (displaced_ > 0) close_gap(hole);
    return taken;
  }

 private:
  struct Place {
    std::int64_t handle = 0;  // 0: empty
    OperationPtr operation;
  };
  static constexpr std::size_t kFirstPlaces = 256;  // always a power of two

  [[nodiscard]] std::size_t mask() const { return places_.size() - 1; }
  [[nodiscard]] std::size_t home(std::int64_t handle) const {
    return static_cast<std::size_t>(handle) & mask();
  }
  [[nodiscard]] std::size_t after(std::size_t at) const { return (at + 1) & mask(); }

  /// Moves up entries that were displaced past the hole, because searches end at the first gap.
  void close_gap(std::size_t hole) {
    for (std::size_t at = after(hole); places_[at].handle != 0; at = after(at)) {
      const std::size_t wanted = home(places_[at].handle);
      if (((at - wanted) & mask()) < ((at - hole) & mask())) continue;
      if (wanted == hole) --displaced_;
      places_[hole] = std::exchange(places_[at], {});
      hole = at;
    }
  }

  void insert(std::int64_t handle, OperationPtr operation) {
    std::size_t at = home(handle);
    if (places_[at].handle != 0) ++displaced_;
    while (places_[at].handle != 0) at = after(at);
    places_[at] = {handle, std::move(operation)};
  }

  void grow() {
    std::vector<Place> old(2 * places_.size());
    old.swap(places_);
    displaced_ = 0;
    for (Place& place : old) {
      if (place.handle != 0) insert(place.handle, std::move(place.operation));
    }
  }

  std::vector<Place> places_;
  std::size_t used_ = 0;
  std::size_t displaced_ = 0;  // entries that are not where their handle points
};

}  // namespace hvdtune
