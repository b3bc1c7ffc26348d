#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {

/// How two processes that meet over a network prove to each other that they know the job's secret,
/// without revealing it. The connecting side goes first, so that a stranger who connects learns
/// nothing.
///
///     connects → accepts   greeting: kMagic, 32 random bytes
///     accepts → connects   greeting: kMagic, 32 random bytes
///     connects → accepts   HMAC-SHA256(secret, "hvdtune connects" greeting greeting)
///     accepts → connects   HMAC-SHA256(secret, "hvdtune accepts" greeting greeting)
///
/// Both random parts are new for every connection, so an overheard proof cannot be used again. The
/// two proofs differ, so that neither can be sent back to its maker. This format never changes;
/// versions are compared afterwards, between processes that trust each other. The traffic that
/// follows is neither encrypted nor signed: the handshake keeps out strangers who connect, not an
/// attacker who can change traffic on the network.
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
  kRefused,  ///< one of the two rejects the other's proof: retrying does not help
  kClosed,   ///< it hung up before it sent anything: it may have ended, or have too many callers
  kSilent,   ///< nothing came until the deadline
};

/// The connecting side. On failure, `why` gives the reason.
Verdict connect_side(const Fd& socket, std::string_view secret, Nanos deadline, std::string& why,
                     const tcp::OnWait& on_wait = {});

}  // namespace handshake
}  // namespace hvdtune
