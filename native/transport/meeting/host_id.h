#pragma once

#include <string>

namespace hvdtune {

// The binding calls this before it makes an engine, and meet() compares the results of all ranks.
// PeerBuffers also calls it, to see whether GPUs are on one host.

/// Equal for processes that can share memory as ranks do: the same kernel, the same network
/// namespace (ranks of a host meet at an abstract Unix socket) and the same user. Containers that
/// have their own network namespace count as separate hosts. `salt`: makes processes of one machine
/// count as different hosts; for tests.
std::string host_id(const std::string& salt);

}  // namespace hvdtune
