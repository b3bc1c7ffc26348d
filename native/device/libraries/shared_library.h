#pragma once

#include <cstdint>
#include <string>

namespace hvdtune {

/// A library that is found at run time and never unloaded.
class SharedLibrary {
 public:
  /// kLazy: what it uses itself is looked for when it is called.
  enum class Binding : std::uint8_t { kNow, kLazy };

  /// `what` is what users call it, e.g. "NCCL". Throws Error(kInvalidArgument) with the loader's
  /// reason.
  SharedLibrary(std::string what, const std::string& path, Binding binding = Binding::kNow);

  /// Puts the address of `symbol` into `function`. Throws Error(kInvalidArgument) where the library
  /// has none: `oldest` is the first version that has all that is looked for.
  template <class Function>
  void find(Function*& function, const char* symbol, const char* oldest) const {
    function = reinterpret_cast<Function*>(address(symbol, oldest));
  }
  /// The same; null where the library has none.
  template <class Function>
  void find_if_there(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address_if_there(symbol));
  }

 private:
  [[nodiscard]] void* address_if_there(const char* symbol) const;
  [[nodiscard]] void* address(const char* symbol, const char* oldest) const;

  std::string what_;
  std::string path_;
  void* handle_;
};

}  // namespace hvdtune
