#pragma once

#include <cstdint>
#include <string>

namespace hvdtune {

/// A library that is found at run time and never unloaded.
class SharedLibrary {
 public:
  /// kLazy: the loader resolves the library's own imports when they are first called.
  enum class Binding : std::uint8_t { kNow, kLazy };

  /// `what` is the library's name in messages, e.g. "NCCL". Throws Error(kInvalidArgument) with the
  /// loader's reason.
  SharedLibrary(std::string what, const std::string& path, Binding binding = Binding::kNow);

  /// Stores the address of `symbol` in `function`. Throws Error(kInvalidArgument) if the library
  /// does not have it; `oldest` is the first version that has all needed symbols.
  template <class Function>
  void find(Function*& function, const char* symbol, const char* oldest) const {
    function = reinterpret_cast<Function*>(address(symbol, oldest));
  }
  /// The same; null if the library does not have it.
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
