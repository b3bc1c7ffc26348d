#pragma once

#include <string>

namespace hvdtune {

// The binding calls this before it makes an engine, and meet() compares what all ranks have found.
// PeerBuffers calls it, too, to see whether GPUs are on one host.

/// Equal for processes that can share memory as ranks do: the same kernel, the same network
/// namespace (ranks of a host meet at an abstract Unix socket) and the same user. Containers that
/// have their own count as hosts of their own. `salt`: keeps processes of one machine apart; for
/// tests.
std::string host_id(const std::string& salt);

}  // namespace hvdtune
