#include "transport/messengers/gloo.h"

#include <dlfcn.h>

#include "base/error.h"

namespace hvdtune {
namespace {

GlooConnect* find(const std::string& module) {
  // Never closed: Gloo's threads may outlive the last group.
  void* const handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const found = handle == nullptr ? nullptr : dlsym(handle, kGlooConnect);
  if (found == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "Gloo cannot be loaded: " + std::string(dlerror()));
  }
  return reinterpret_cast<GlooConnect*>(found);
}

}  // namespace

void load_gloo(const std::string& module) { find(module); }

std::unique_ptr<Messenger> connect_gloo(const std::string& module, const GlooGroup& group) {
  std::string problem;
  std::unique_ptr<Messenger> messenger(find(module)(group, problem));
  if (!messenger) throw Error(ErrorKind::kAborted, "Gloo cannot connect the ranks: " + problem);
  return messenger;
}

}  // namespace hvdtune
