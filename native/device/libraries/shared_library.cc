#include "device/libraries/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "base/error.h"

namespace hvdtune {

SharedLibrary::SharedLibrary(std::string what, const std::string& path, Binding binding)
    : what_(std::move(what)),
      path_(path),
      handle_(
          dlopen(path.c_str(), (binding == Binding::kNow ? RTLD_NOW : RTLD_LAZY) | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                what_ + " cannot be loaded: " + std::string(dlerror()));
  }
}

void* SharedLibrary::address_if_there(const char* symbol) const { return dlsym(handle_, symbol); }

void* SharedLibrary::address(const char* symbol, const char* oldest) const {
  void* const found = address_if_there(symbol);
  if (found == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, what_ + " at " + path_ + " has no " + symbol +
                                                 ": hvdtune needs " + oldest + " or later");
  }
  return found;
}

}  // namespace hvdtune
