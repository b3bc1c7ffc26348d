#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/arena/heap_file.h"

namespace hvdtune {

/// The ranks' regions of the heap file, as this process sees them: each is mapped from its
/// beginning as far as it has been asked for. One thread at a time.
class PeerHeaps {
 public:
  explicit PeerHeaps(std::shared_ptr<HeapFile> file);
  ~PeerHeaps();
  PeerHeaps(const PeerHeaps&) = delete;
  PeerHeaps& operator=(const PeerHeaps&) = delete;

  /// Makes `bytes` bytes at `offset` of `rank`'s region accessible. Addresses of that region that
  /// were asked for before may have moved. Throws Error(kAborted) when the system refuses, or when
  /// the region is not that long.
  void reach(int rank, std::uint64_t offset, std::uint64_t bytes);

  /// Address of what was made accessible.
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
