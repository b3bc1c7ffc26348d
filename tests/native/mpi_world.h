#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "collective/messages/message_communicator.h"
#include "transport/messengers/mpi.h"

namespace hvdtune::testing {

/// The MPI that this program was started by: HVDTUNE_TEST_MPI is its library.
inline Mpi& test_mpi() {
  static Mpi& mpi = []() -> Mpi& {
    const char* const path = std::getenv("HVDTUNE_TEST_MPI");
    if (path == nullptr) fail(__FILE__, __LINE__, "HVDTUNE_TEST_MPI is not set");
    Mpi& loaded = Mpi::load(path);
    loaded.start(true, false);
    std::atexit([] { Mpi::finish(true, -1); });
    return loaded;
  }();
  return mpi;
}

/// All processes, as one job.
inline MpiJob& test_job() {
  static const std::shared_ptr<MpiJob> job = [] {
    std::vector<int> all(static_cast<std::size_t>(test_mpi().world_size()));
    std::iota(all.begin(), all.end(), 0);
    return test_mpi().job(all, test_mpi().has_job(all));
  }();
  return *job;
}

inline std::unique_ptr<MessageCommunicator> mpi_communicator(std::vector<int> members, int index,
                                                             int tag) {
  MessageGroup group{members, index, {kMillisecond, true}, [] {}};
  return std::make_unique<MessageCommunicator>(test_job().messenger(std::move(members), tag),
                                               std::move(group), kMpiActivities);
}

/// The first `ranks` processes of MPI_COMM_WORLD; the others do nothing. Each process runs its own
/// rank only, and what fails in one ends all.
class MpiWorld {
 public:
  explicit MpiWorld(int ranks) : ranks_(ranks), rank_(test_mpi().world_rank()) {
    CHECK(ranks <= test_mpi().world_size());
    test_job();
    if (rank_ >= ranks) return;
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    communicator_ = mpi_communicator(std::move(members), rank_, 0);
  }

  void run(const std::function<void(int, Communicator&)>& body) {
    if (!communicator_) return;
    try {
      body(rank_, *communicator_);
    } catch (const std::exception& failure) {
      std::printf("rank %d: %s\n", rank_, failure.what());
      std::fflush(stdout);
      _exit(1);  // its mpirun ends the others, who wait for this one
    }
  }

  [[nodiscard]] int size() const { return ranks_; }

  /// A number in memory that all ranks share.
  std::atomic<int>& counter() {
    if (!communicator_) return alone_;
    const int own = rank_ == 0 ? memfd_create("counter", 0) : -1;
    const auto places = communicator_->exchange({getpid(), own});
    const std::string path =
        "/proc/" + std::to_string(places[0]) + "/fd/" + std::to_string(places[1]);
    const int file = rank_ == 0 ? own : open(path.c_str(), O_RDWR);
    CHECK(file >= 0);
    if (rank_ == 0) CHECK_EQ(ftruncate(file, 4096), 0);
    communicator_->barrier();
    void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED);
    communicator_->barrier();
    close(file);
    return *static_cast<std::atomic<int>*>(memory);
  }

 private:
  int ranks_;
  int rank_;
  std::unique_ptr<MessageCommunicator> communicator_;
  std::atomic<int> alone_{0};
};

}  // namespace hvdtune::testing
