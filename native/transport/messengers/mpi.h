#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/messengers/messenger.h"

namespace hvdtune {

/// The processes of one job, in their own communicator: other users of MPI in these processes
/// cannot interfere with our messages.
class MpiJob {
 public:
  virtual ~MpiJob() = default;

  /// Messages among `ranks` of the job, which are its members in this order. This involves no
  /// communication, so it can be created while other messages are under way. Messengers that exist
  /// at once have different tags (0 to 32767), the same on all their members. The job outlives its
  /// messengers.
  virtual std::unique_ptr<Messenger> messenger(std::vector<int> ranks, int tag) = 0;
};

/// This process's MPI: Open MPI, or one with MPICH's binary interface (MPICH, Intel MPI, MVAPICH,
/// Cray MPICH). It is found and loaded at run time, so that one build of hvdtune works with each.
///
/// Only messages between two processes are used: the few functions for them are called through a
/// table, in which a handle is a pointer (Open MPI) or an int (MPICH).
class Mpi {
 public:
  virtual ~Mpi() = default;
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  /// Loads a library, or uses the one that this process has loaded already, which must be the same;
  /// it stays loaded. Throws Error(kInvalidArgument) if it cannot be loaded, or is not a known MPI.
  static Mpi& load(const std::string& path);

  /// The library that load() has loaded; null before.
  static Mpi* current();

  /// Ends hvdtune's use of MPI. Then calls MPI_Finalize if `finalizes` and start() has initialised
  /// MPI, unless a job was aborted: MPI_Finalize would wait for processes that no longer exist.
  /// Collective, in the sense of MPI. Some MPIs sometimes hang in MPI_Finalize. With these, the
  /// process instead agrees on the end with mpirun, if that is Hydra and the MPI speaks version 1
  /// of PMI to it. `hydra` is the descriptor of the process's connection to Hydra (-1: mpirun is
  /// not Hydra). Otherwise the process stops waiting after some seconds, and ends with its own exit
  /// status.
  static void finish(bool finalizes, int hydra);

  /// Initialises MPI if nobody has yet. `multiple`: ask for MPI_THREAD_MULTIPLE. Throws
  /// Error(kInvalidArgument) if MPI was finalised, or does not allow calls from several threads one
  /// after the other. `between_hosts`: some of the processes are on other hosts.
  virtual void start(bool multiple, bool between_hosts) = 0;

  /// After start().
  [[nodiscard]] virtual int world_rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// Whether several threads may call MPI at the same time.
  [[nodiscard]] virtual bool threads_multiple() const = 0;

  /// First line of the library's description of itself.
  [[nodiscard]] virtual std::string version() const = 0;

  /// The job whose rank r is rank world_ranks[r] of MPI_COMM_WORLD; collective over these. `again`:
  /// reuse the earlier job, if all have it (has_job); the same on all.
  virtual std::shared_ptr<MpiJob> job(const std::vector<int>& world_ranks, bool again) = 0;
  /// Whether this rank has an earlier job of these processes, which ended well.
  [[nodiscard]] virtual bool has_job(const std::vector<int>& world_ranks) const = 0;

 protected:
  Mpi() = default;
};

}  // namespace hvdtune
