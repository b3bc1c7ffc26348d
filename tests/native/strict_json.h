#pragma once

#include <cctype>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvdtune::testing {

/// A JSON value, as far as traces need it: numbers are integers. Lookups of missing keys throw.
struct Json {
  enum class Kind { kString, kNumber, kArray, kObject } kind = Kind::kNumber;
  std::string text;
  long long number = 0;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  [[nodiscard]] const Json* find(std::string_view key) const {
    for (const auto& [name, value] : members) {
      if (name == key) return &value;
    }
    return nullptr;
  }
  [[nodiscard]] const Json& at(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) throw std::runtime_error("no key " + std::string(key));
    return *value;
  }
  [[nodiscard]] std::string string_or_empty(std::string_view key) const {
    const Json* value = find(key);
    return value == nullptr ? "" : value->text;
  }
};

/// Parses all of `text` or throws: no trailing commas, no raw control characters, and nothing but
/// blanks behind the value.
class StrictJsonParser {
 public:
  explicit StrictJsonParser(std::string_view text) : text_(text) {}

  Json parse() {
    Json value = parse_value();
    skip_blanks();
    if (at_ != text_.size()) fail("text behind the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("JSON: " + what + " at " + std::to_string(at_) + " of " +
                             std::to_string(text_.size()) + ", before \"" +
                             std::string(text_.substr(at_, 40)) + "\"");
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \n\r\t").find(text_[at_]) != text_.npos) ++at_;
  }
  char peek() {
    skip_blanks();
    if (at_ == text_.size()) fail("end of text");
    return text_[at_];
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("no ") + c);
  }

  Json parse_value() {
    Json value;
    const char c = peek();
    if (c == '"') {
      value.kind = Json::Kind::kString;
      value.text = parse_string();
    } else if (c == '[') {
      value.kind = Json::Kind::kArray;
      parse_sequence('[', ']', [&] { value.items.push_back(parse_value()); });
    } else if (c == '{') {
      value.kind = Json::Kind::kObject;
      parse_sequence('{', '}', [&] {
        if (peek() != '"') fail("no key");
        std::string key = parse_string();
        expect(':');
        value.members.emplace_back(std::move(key), parse_value());
      });
    } else {
      value.number = parse_number();
    }
    return value;
  }

  template <class Element>
  void parse_sequence(char open, char close, Element&& element) {
    expect(open);
    if (take(close)) return;
    do element();
    while (take(','));
    expect(close);
  }

  long long parse_number() {
    const std::size_t begin = at_;
    if (text_[at_] == '-') ++at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    if (at_ == begin) fail("no value");
    return std::stoll(std::string(text_.substr(begin, at_ - begin)));
  }

  std::string parse_string() {
    expect('"');
    std::string out;
    for (;; ++at_) {
      if (at_ == text_.size()) fail("unfinished string");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
      if (c == '"') break;
      out += c == '\\' ? parse_escape() : c;
    }
    ++at_;
    return out;
  }

  char parse_escape() {
    ++at_;
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("n")) return '\n';
    if (rest.starts_with("t")) return '\t';
    if (rest.starts_with("\"") || rest.starts_with("\\")) return rest[0];
    if (!rest.starts_with("u00") || rest.size() < 5) fail("unknown escape");
    at_ += 4;
    return static_cast<char>(std::stoi(std::string(rest.substr(1, 4)), nullptr, 16));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

inline Json parse_json(std::string_view text) { return StrictJsonParser(text).parse(); }

/// Throws unless every E closes a B of its pid, times of a pid's B and E do not go backwards and
/// nothing stays open.
inline void check_balanced(const Json& events) {
  std::map<long long, int> depth;
  std::map<long long, long long> last;
  for (const Json& event : events.items) {
    const std::string& phase = event.at("ph").text;
    if (phase != "B" && phase != "E") continue;
    const long long pid = event.at("pid").number;
    const long long time = event.at("ts").number;
    if (time < last[pid]) throw std::runtime_error("time goes back in row " + std::to_string(pid));
    last[pid] = time;
    depth[pid] += phase == "B" ? 1 : -1;
    if (depth[pid] < 0) throw std::runtime_error("E without B in row " + std::to_string(pid));
  }
  for (const auto& [pid, open] : depth) {
    if (open != 0) throw std::runtime_error("B without E in row " + std::to_string(pid));
  }
}

}  // namespace hvdtune::testing
