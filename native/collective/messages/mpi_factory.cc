#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "collective/communicator_factory.h"
#include "collective/messages/message_communicator.h"
#include "transport/messengers/mpi.h"

namespace hvdtune {
namespace {

/// One process's side of a job over MPI.
class MpiPlane {
 public:
  MpiPlane(MpiChoice choice, CommunicatorFactory control)
      : choice_(std::move(choice)), control_(std::move(control)) {}

  std::unique_ptr<Communicator> connect(const CommunicatorSpec& spec) {
    if (spec.number == 0) meet(spec);
    return std::make_unique<MessageCommunicator>(job_->messenger(spec.members, spec.number),
                                                 message_group(spec), kMpiActivities);
  }

 private:
  /// No rank makes a call that waits for all before all can make it: a rank without MPI would keep
  /// the others waiting in MPI_Init.
  void meet(const CommunicatorSpec& spec) {
    const auto control = control_(spec);
    agree(*control, spec, [this] { mpi_ = &Mpi::load(choice_.library); });
    const bool between_hosts = spec.session.local.size() < spec.members.size();
    agree(*control, spec, [&] { mpi_->start(choice_.multiple, between_hosts); });
    const auto all = control->exchange({mpi_->world_rank(), mpi_->world_size()});
    std::vector<int> world_ranks;
    for (std::size_t at = 0; at < all.size(); at += 2) {
      world_ranks.push_back(static_cast<int>(all[at]));
    }
    const std::set<int> different(world_ranks.begin(), world_ranks.end());
    agree(*control, spec, [&] {
      if (different.size() == world_ranks.size()) return;
      throw Error(ErrorKind::kInvalidArgument,
                  "HOROVOD_CPU_OPERATIONS=mpi: the MPI of " + choice_.library + " (" +
                      mpi_->version() + ") does not know these " +
                      std::to_string(world_ranks.size()) +
                      " processes as one job: its MPI_COMM_WORLD has " + std::to_string(all[1]) +
                      (all[1] == 1 ? " process" : " processes") +
                      ". They must be started by the mpirun of the same MPI (hvdtune run --mpi), "
                      "or HVDTUNE_MPI_LIBRARY must name the library of the MPI that started them");
    });
    // If some rank cannot reuse its job, all must make a new one together; otherwise they would
    // wait for each other.
    const auto kept = control->exchange({mpi_->has_job(world_ranks) ? 1 : 0});
    const bool again = std::ranges::all_of(kept, [](auto known) { return known == 1; });
    job_ = mpi_->job(world_ranks, again);
  }

  MpiChoice choice_;
  CommunicatorFactory control_;
  Mpi* mpi_ = nullptr;
  std::shared_ptr<MpiJob> job_;
};

}  // namespace

CommunicatorFactory make_mpi_factory(MpiChoice choice, CommunicatorFactory control) {
  auto plane = std::make_shared<MpiPlane>(std::move(choice), std::move(control));
  return [plane](const CommunicatorSpec& spec) { return plane->connect(spec); };
}

}  // namespace hvdtune
