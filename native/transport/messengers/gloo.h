#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/messengers/messenger.h"

namespace hvdtune {

/// What a member brings when Gloo connects a group.
struct GlooGroup {
  int index = 0;  ///< this member
  int size = 1;
  /// Network interface to listen at; or, where it is empty, the address, in digits; or, where that
  /// is empty as well, the loopback interface.
  std::string interface;
  std::string address;
  /// Of the connecting, and of every message.
  Nanos timeout = 30 * kSecond;
  /// Gives all members' texts for this one's, in member order. Called as often on all members. May
  /// throw.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
};

/// Gloo lies in a module of its own beside hvdtune's, which is built where Gloo is found and loaded
/// when Gloo is chosen: this one does not need it.
///
/// Collective. `module` is the module's path. Throws Error(kInvalidArgument) where it cannot be
/// loaded, and Error(kAborted) where the members cannot be connected.
std::unique_ptr<Messenger> connect_gloo(const std::string& module, const GlooGroup& group);

/// Loads the module, to see whether it can be. Throws Error(kInvalidArgument).
void load_gloo(const std::string& module);

/// The module's only name: a new Messenger of the caller's, or null and why.
using GlooConnect = Messenger*(const GlooGroup& group, std::string& problem);
inline constexpr const char* kGlooConnect = "hvdtune_gloo_connect";

}  // namespace hvdtune
