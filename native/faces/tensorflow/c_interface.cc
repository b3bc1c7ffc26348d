#include "faces/tensorflow/c_interface.h"

#include <dlfcn.h>

#include <utility>

#include "base/error.h"

namespace hvdtune::faces::tensorflow {
namespace {

CInterface found;

// A function that takes a std::function<void()> by value, as libstdc++ mangles it. A TensorFlow
// built with another C++ library does not have this symbol, and its std::function has another
// layout.
constexpr const char* kSameStdFunction =
    "_ZN10tensorflow16ThreadPoolDevice12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextE"
    "St8functionIFvvEE";

}  // namespace

void find_c_interface(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, path + " is not loaded: import tensorflow first");
  }
  CInterface table;
  std::string missing;
  const auto look = [&](const char* symbol) {
    void* const address = dlsym(library, symbol);
    if (address == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
    return address;
  };
// NOLINTNEXTLINE(bugprone-macro-parentheses): parts of a declaration
#define HVDTUNE_FIND(result, name, parameters) \
  table.name = reinterpret_cast<result(*) parameters>(look("TF_" #name));
  HVDTUNE_TENSORFLOW_FUNCTIONS(HVDTUNE_FIND)
#undef HVDTUNE_FIND
  look(kSameStdFunction);
  dlclose(library);  // TensorFlow itself keeps it
  if (!missing.empty()) {
    throw Error(ErrorKind::kInvalidArgument, path + " lacks " + missing);
  }
  found = table;
}

const CInterface& tf() { return found; }

Done take_done(TF_AsyncOpKernelDoneCallback* callback) {
  return std::move(*reinterpret_cast<Done*>(callback));
}

void TfStatus::check() const {
  if (!ok()) throw Error(ErrorKind::kInvalidArgument, tf().Message(status_));
}

}  // namespace hvdtune::faces::tensorflow
