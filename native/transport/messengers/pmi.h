#pragma once

#include <functional>
#include <string>

namespace hvdtune {

/// The connection to its launcher that MPICH's mpirun (Hydra) gives a process, for what the MPI
/// library itself says there only within MPI_Finalize: that this process has come to its end, and
/// that it leaves in order. Texts of version 1 of the process management interface (PMI), a line
/// each.
///
/// Nobody else may speak on the connection meanwhile; the MPI library does so while it starts,
/// finalises or spawns. One thread at a time. The connection stays the MPI library's: it is not
/// closed here.
class Pmi {
 public:
  /// By its descriptor.
  explicit Pmi(int fd) : fd_(fd) {}

  /// Waits until all processes of the job have come here. Calls `meanwhile` every millisecond:
  /// others may need this process's MPI library until they come. False: the launcher is gone or
  /// answered something else.
  bool barrier(const std::function<void()>& meanwhile);

  /// From now on the launcher takes this process's end for one in order. False: as above.
  bool leave();

 private:
  bool ask(const std::string& request, const std::string& answer,
           const std::function<void()>& meanwhile);

  int fd_;
};

}  // namespace hvdtune
