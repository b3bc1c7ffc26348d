#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/arena/heap_file.h"

namespace hvdtune {

/// The ranks' regions of the heap file, mapped into this process: each from its beginning up to the
/// furthest byte that reach() was called for. One thread at a time.
class PeerHeaps {
 public:
  explicit PeerHeaps(std::shared_ptr<HeapFile> file);
  ~PeerHeaps();
  PeerHeaps(const PeerHeaps&) = delete;
  PeerHeaps& operator=(const PeerHeaps&) = delete;

  /// Makes `bytes` bytes at `offset` of `rank`'s region accessible. Earlier addresses in that
  /// region may become invalid. Throws Error(kAborted) if the system refuses, or if the region is
  /// not that long.
  void reach(int rank, std::uint64_t offset, std::uint64_t bytes);

  /// Address of memory that reach() has made accessible.
  [[nodiscard]] std::byte* at(int rank, std::uint64_t offset) const {
    return regions_[static_cast<std::size_t>(rank)].base + offset;
  }

 private:
  struct Region {
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
  };
  std::shared_ptr<HeapFile> file_;
  std::vector<Region> regions_;
};

}  // namespace hvdtune
