#include "transport/sockets/handshake.h"

namespace hvdtune::handshake {

std::string make_greeting() {
  std::string greeting(kGreetingBytes, '\0');
  greeting.replace(0, kMagic.size(), kMagic);
  fill_with_random_bytes(greeting.data() + kMagic.size(), kGreetingBytes - kMagic.size());
  return greeting;
}

Digest proof(Side side, std::string_view secret, std::string_view connecting_greeting,
             std::string_view accepting_greeting) {
  std::string text = side == Side::kConnects ? "hvdtune connects" : "hvdtune accepts";
  text.append(connecting_greeting).append(accepting_greeting);
  return hmac_sha256(secret, text);
}

Verdict connect_side(const Fd& socket, std::string_view secret, Nanos deadline, std::string& why,
                     const tcp::OnWait& on_wait) {
  using tcp::Outcome;
  const auto ended = [&why](Outcome outcome, Verdict verdict, const char* closed) {
    why = outcome == Outcome::kTimeout ? "it said nothing" : closed;
    return outcome == Outcome::kTimeout ? Verdict::kSilent : verdict;
  };
  constexpr const char* kNotOurs = "the process that listens there is not part of an hvdtune job";
  const std::string mine = make_greeting();
  std::string theirs(kGreetingBytes, '\0');
  Outcome outcome = tcp::send_all(socket, mine, deadline, on_wait);
  if (outcome == Outcome::kDone) {
    outcome = tcp::receive_all(socket, theirs.data(), theirs.size(), deadline, on_wait);
  }
  if (outcome != Outcome::kDone) {
    return ended(outcome, Verdict::kClosed, "it closed the connection before it sent anything");
  }
  if (theirs.compare(0, kMagic.size(), kMagic) != 0) {
    why = kNotOurs;
    return Verdict::kRefused;
  }
  constexpr const char* kOtherSecret =
      "it turned this process away: the two have different secrets (HVDTUNE_SECRET)";
  Digest answer{};
  outcome = tcp::send_all(socket, view_of(proof(Side::kConnects, secret, mine, theirs)), deadline,
                          on_wait);
  if (outcome == Outcome::kDone) {
    outcome = tcp::receive_all(socket, answer.data(), answer.size(), deadline, on_wait);
  }
  if (outcome != Outcome::kDone) return ended(outcome, Verdict::kRefused, kOtherSecret);
  const Digest expected = proof(Side::kAccepts, secret, mine, theirs);
  if (!equal_in_constant_time(view_of(answer), view_of(expected))) {
    why = "it does not know the job's secret";
    return Verdict::kRefused;
  }
  return Verdict::kTrusted;
}

}  // namespace hvdtune::handshake
