#include "faces/xla/untyped_call.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "faces/places.h"
#include "faces/step_ends.h"
#include "faces/xla/call.h"

namespace hvdtune::faces::xla {
namespace {

/// XlaCustomCallStatus: empty for success.
using Failure = std::optional<std::string>;

/// The words of a text, one after the other.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}

  template <typename Number>
  Number next() {
    Number number{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc() || end == rest_.data() + rest_.size() || *end != ' ') {
      refuse_call("hvdtune's custom call was compiled by another version of hvdtune");
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()) + 1);
    return number;
  }

  /// A length, at most the size of the remaining text.
  std::size_t count() {
    const auto number = next<std::size_t>();
    if (number > rest_.size()) refuse_call("hvdtune's custom call has a damaged text");
    return number;
  }

  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

/// Tensors without their memory, and the dimensions that they refer to.
struct Described {
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::int64_t>> shapes;
};

Described described(Words& words, std::size_t count) {
  Described all;
  all.tensors.resize(count);
  all.shapes.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto dtype = words.next<int>();
    if (dtype < 0 || dtype >= kDTypeCount) refuse_call("hvdtune's custom call has no such dtype");
    all.shapes[i].resize(words.count());
    for (std::int64_t& length : all.shapes[i]) length = words.next<std::int64_t>();
    all.tensors[i].dtype = static_cast<DType>(dtype);
    all.tensors[i].shape = all.shapes[i];
  }
  return all;
}

void run_collective(void** results, const void** operands, std::string_view text) {
  Words words(text);
  std::array<std::int64_t, kCallNumbers> numbers{};
  for (std::int64_t& number : numbers) number = words.next<std::int64_t>();
  std::array<double, 2> factors{};
  for (double& factor : factors) factor = words.next<double>();
  const std::size_t count = words.count();
  Described given = described(words, count);
  Described made = described(words, count);
  for (std::size_t i = 0; i < count; ++i) {
    given.tensors[i].data = const_cast<void*>(operands[i]);
    made.tensors[i].data = results[i];
  }
  *static_cast<std::int32_t*>(results[count]) = *static_cast<const std::int32_t*>(operands[count]);
  run_call(
      {.name = words.rest(), .numbers = numbers, .factors = factors, .splits = {}, .received = {}},
      given.tensors, made.tensors);
}

template <typename Run>
void with_status(void* status, Run&& run) {
  auto& failure = *static_cast<Failure*>(status);
  try {
    run();
  } catch (const Error& error) {
    failure = text_of(error);
  } catch (const std::exception& error) {
    failure = error.what();
  }
}

/// Whether XLA's status has the layout of ours: XLA exports only the function that reads it.
bool reads_failures(std::optional<std::string_view> (*message_of)(const void*)) {
  const Failure none;
  const Failure some = "a text that is too long to be kept in the object itself";
  return message_of(&none) == std::nullopt && message_of(&some) == some;
}

}  // namespace

void call_untyped_collective(void* results, const void** operands, const char* text,
                             std::size_t length, void* status) {
  with_status(status,
              [&] { run_collective(static_cast<void**>(results), operands, {text, length}); });
}

void call_untyped_place(void* result, const void** /*operands*/, const char* text,
                        std::size_t length, void* status) {
  with_status(status, [&] {
    Words words({text, length});
    const auto which = static_cast<Place>(words.next<int>());
    *static_cast<std::int32_t*>(result) = place(which, words.next<std::uint32_t>());
  });
}

void call_untyped_step_end(void* result, const void** operands, const char* text,
                           std::size_t length, void* status) {
  with_status(status, [&] {
    end_step(Words({text, length}).next<std::int64_t>());
    *static_cast<std::int32_t*>(result) = *static_cast<const std::int32_t*>(operands[0]);
  });
}

void register_untyped_calls(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, path + " is not loaded: import tensorflow first");
  }
  std::string missing;
  const auto look = [&](const char* symbol) {
    void* const address = dlsym(library, symbol);
    if (address == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
    return address;
  };
  // As libstdc++ mangles them; std::string is then this compiler's.
  auto* const global =
      reinterpret_cast<void* (*)()>(look("_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  auto* const add =
      reinterpret_cast<void (*)(void*, const std::string&, void*, const std::string&)>(
          look("_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_"
               "traitsIcESaIcEEEPvS8_"));
  auto* const message_of = reinterpret_cast<std::optional<std::string_view> (*)(const void*)>(
      look("_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"));
  dlclose(library);  // TensorFlow itself keeps it
  if (!missing.empty()) {
    throw Error(ErrorKind::kInvalidArgument, path + " lacks " + missing);
  }
  if (!reads_failures(message_of)) {
    throw Error(ErrorKind::kInvalidArgument,
                path + " has another XlaCustomCallStatus than hvdtune knows");
  }
  add(global(), "hvdtune_collective", reinterpret_cast<void*>(&call_untyped_collective), "Host");
  add(global(), "hvdtune_place", reinterpret_cast<void*>(&call_untyped_place), "Host");
  add(global(), "hvdtune_step_end", reinterpret_cast<void*>(&call_untyped_step_end), "Host");
}

}  // namespace hvdtune::faces::xla
