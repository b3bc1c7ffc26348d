#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hvdtune::wire {

/// A message that does not follow the format: truncated, too long, or an unknown code.
class DecodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Appends values to a byte string. Numbers are little-endian as in memory: all members of a
/// job that exchange messages have the same byte order, which the handshake's magic verifies.
class Encoder {
 public:
  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  Encoder& put(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    out_.append(bytes, sizeof(T));
    return *this;
  }

  Encoder& put(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    out_.append(text);
    return *this;
  }

  template <typename T>
  Encoder& put_all(const std::vector<T>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) put(value);
    return *this;
  }

  [[nodiscard]] const std::string& bytes() const { return out_; }
  std::string take() { return std::move(out_); }
  void clear() { out_.clear(); }

 private:
  std::string out_;
};

/// Reads what Encoder wrote. Every read is bounds-checked and throws DecodeError.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
    requires(std::is_arithmetic_v<T>)
  T get() {
    if (rest_.size() < sizeof(T)) throw DecodeError("message ends inside a number");
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  /// A count of elements that take at least `element_bytes` each. It is bounded by the bytes left,
  /// so that a corrupt count cannot cause a huge allocation.
  std::uint32_t get_count(std::size_t element_bytes) {
    const auto count = get<std::uint32_t>();
    if (count > rest_.size() / element_bytes)
      throw DecodeError("message has fewer elements than it says");
    return count;
  }

  std::string get_string() {
    const auto length = get_count(1);
    std::string text(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return text;
  }

  template <typename T>
  std::vector<T> get_all() {
    std::vector<T> values(get_count(sizeof(T)));
    for (T& value : values) value = get<T>();
    return values;
  }

  /// The message must end here.
  void finish() const {
    if (!rest_.empty()) throw DecodeError("message has bytes after its end");
  }

 private:
  std::string_view rest_;
};

}  // namespace hvdtune::wire
