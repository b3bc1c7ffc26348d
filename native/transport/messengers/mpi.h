#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/messengers/messenger.h"

namespace hvdtune {

/// The processes of one job, in a communicator of their own: nothing that others do with MPI in
/// these processes meets our messages.
class MpiJob {
 public:
  virtual ~MpiJob() = default;

  /// Messages among `ranks` of the job, its members in this order. Nobody is asked, so it can be
  /// made while other messages are under way. Messengers that exist at once have different tags (0
  /// to 32767), the same on all their members. The job outlives its messengers.
  virtual std::unique_ptr<Messenger> messenger(std::vector<int> ranks, int tag) = 0;
};

/// This process's MPI: Open MPI, or one with MPICH's binary interface (MPICH, Intel MPI, MVAPICH,
/// Cray MPICH). It is found and loaded at run time, so that one build of hvdtune works with each.
///
/// Only messages between two processes are used: the few functions that take them are called
/// through a table, in which a handle is a pointer (Open MPI) or an int (MPICH).
class Mpi {
 public:
  virtual ~Mpi() = default;
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  /// Loads a library, or takes the one that this process has loaded already, which must be the same
  /// one; it stays loaded. Throws Error(kInvalidArgument): what cannot be loaded, or is no MPI that
  /// is known.
  static Mpi& load(const std::string& path);

  /// What load() has loaded; null before.
  static Mpi* current();

  /// Nothing here calls MPI any more; then MPI_Finalize, if `finalizes`, where start() has
  /// initialised MPI, unless a job was aborted: it would wait for processes that are no more.
  /// Collective, in the sense of MPI. Where an MPI is known not to come back from it at times, the
  /// end is agreed on with the mpirun instead, if that is Hydra, which every process tells by
  /// `hydra`, the descriptor of the connection that it was given (-1: it is not), and the MPI
  /// speaks version 1 to it; else the process goes on after some seconds, and ends with the status
  /// that it asks for.
  static void finish(bool finalizes, int hydra);

  /// Initialises MPI where nobody has yet. `multiple`: ask for MPI_THREAD_MULTIPLE. Throws
  /// Error(kInvalidArgument) where MPI was finalised, or does not allow calls from several threads
  /// one after the other. `between_hosts`: some of the processes are on other hosts.
  virtual void start(bool multiple, bool between_hosts) = 0;

  /// After start().
  [[nodiscard]] virtual int world_rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// Whether several threads may call MPI at the same time.
  [[nodiscard]] virtual bool threads_multiple() const = 0;

  /// First line of what the library says of itself.
  [[nodiscard]] virtual std::string version() const = 0;

  /// The job whose rank r is rank world_ranks[r] of MPI_COMM_WORLD; collective over these.
  /// `again`: that one, if all have it (has_job); the same on all.
  virtual std::shared_ptr<MpiJob> job(const std::vector<int>& world_ranks, bool again) = 0;
  /// Whether this rank has an earlier job of these processes, which ended well.
  [[nodiscard]] virtual bool has_job(const std::vector<int>& world_ranks) const = 0;

 protected:
  Mpi() = default;
};

}  // namespace hvdtune
