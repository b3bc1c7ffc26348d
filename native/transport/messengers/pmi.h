#pragma once

#include <functional>
#include <string>

namespace hvdtune {

/// The connection that MPICH's mpirun (Hydra) gives each process. hvdtune uses it to say what the
/// MPI library says only within MPI_Finalize: that this process has reached its end, and that it
/// ends normally. The messages are those of version 1 of the process management interface (PMI),
/// one line each.
///
/// Nobody else may use the connection meanwhile; the MPI library does so while it starts, finalises
/// or spawns. One thread at a time. The MPI library owns the connection: it is not closed here.
class Pmi {
 public:
  /// `fd`: the connection's descriptor.
  explicit Pmi(int fd) : fd_(fd) {}

  /// Waits until all processes of the job have called this. Calls `meanwhile` every millisecond:
  /// other processes may need this one's MPI library until they get here. False if the launcher is
  /// gone or gave an unexpected answer.
  bool barrier(const std::function<void()>& meanwhile);

  /// From now on the launcher treats this process's end as normal. False: as above.
  bool leave();

 private:
  bool ask(const std::string& request, const std::string& answer,
           const std::function<void()>& meanwhile);

  int fd_;
};

}  // namespace hvdtune
