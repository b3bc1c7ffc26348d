#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/messengers/messenger.h"

namespace hvdtune {

/// A member's settings when Gloo connects a group.
struct GlooGroup {
  int index = 0;  ///< this member
  int size = 1;
  /// Network interface to listen at; if empty, `address`, which is numeric; if that is empty as
  /// well, the loopback interface.
  std::string interface;
  std::string address;
  /// Timeout of connecting, and of every message.
  Nanos timeout = 30 * kSecond;
  /// Exchanges texts: takes this member's and returns all members', in member order. All members
  /// call it equally often. May throw.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
};

/// Connects a group with Gloo. Gloo is in a separate module beside hvdtune's, which is built if
/// Gloo is found and loaded if Gloo is chosen: hvdtune's own module does not need it.
///
/// Collective. `module` is the module's path. Throws Error(kInvalidArgument) if it cannot be
/// loaded, and Error(kAborted) if the members cannot be connected.
std::unique_ptr<Messenger> connect_gloo(const std::string& module, const GlooGroup& group);

/// Loads the module, to check that this works. Throws Error(kInvalidArgument).
void load_gloo(const std::string& module);

/// The module's only symbol. Returns a new Messenger that the caller owns, or null and the reason.
using GlooConnect = Messenger*(const GlooGroup& group, std::string& problem);
inline constexpr const char* kGlooConnect = "hvdtune_gloo_connect";

}  // namespace hvdtune
