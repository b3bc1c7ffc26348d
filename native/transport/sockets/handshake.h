#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {

/// How two processes that meet over a network convince each other that they know the job's secret,
/// without telling it. Who connects goes first, so that a stranger who connects learns nothing.
///
///     connects → accepts   greeting: kMagic, 32 random bytes
///     accepts → connects   greeting: kMagic, 32 random bytes
///     connects → accepts   HMAC-SHA256(secret, "hvdtune connects" greeting greeting)
///     accepts → connects   HMAC-SHA256(secret, "hvdtune accepts" greeting greeting)
///
/// Both random parts are new for every connection: what somebody has overheard convinces nobody
/// again, and the two proofs differ, so that none can be sent back to who made it. This format
/// never changes; versions are compared afterwards, between processes that trust each other. What
/// follows is neither encrypted nor signed: it keeps out strangers who connect, not somebody who
/// can change what passes through the network.
namespace handshake {

inline constexpr std::string_view kMagic = "hvdtune\1";
inline constexpr std::size_t kGreetingBytes = kMagic.size() + 32;
inline constexpr std::size_t kProofBytes = sizeof(Digest);

enum class Side { kConnects, kAccepts };

std::string make_greeting();
Digest proof(Side side, std::string_view secret, std::string_view connecting_greeting,
             std::string_view accepting_greeting);

enum class Verdict {
  kTrusted,
  kRefused,  ///< one of the two is not convinced: trying again would not help
  kClosed,   ///< it hung up before it said anything: it may have ended, or have too many callers
  kSilent,   ///< nothing came until the deadline
};

/// The connecting side. `why` tells what is wrong, if anything is.
Verdict connect_side(const Fd& socket, std::string_view secret, Nanos deadline, std::string& why,
                     const tcp::OnWait& on_wait = {});

}  // namespace handshake
}  // namespace hvdtune
