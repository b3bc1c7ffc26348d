#pragma once

// A small test framework: TEST(name) { CHECK_EQ(1 + 1, 2); }. check_main.cc has main(): it runs
// the tests whose "file.name" contains its first argument and fails if one fails or none matches.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace hvdtune::testing {

/// Whether HVDTUNE_TEST_LONG asks for what CI leaves out, as it goes ways that others go.
inline bool long_tests() {
  const char* const choice = std::getenv("HVDTUNE_TEST_LONG");
  return choice != nullptr && *choice != '\0' && std::string(choice) != "0";
}

struct TestCase {
  const char* file;  ///< its path
  const char* name;
  std::function<void()> body;
};

/// Every TEST of the executable; those of a file in the order of their definition.
inline std::vector<TestCase>& all_tests() {
  static std::vector<TestCase> tests;
  return tests;
}

struct Registration {
  Registration(const char* file, const char* name, void (*body)()) {
    all_tests().push_back({file, name, body});
  }
};

/// What a failed CHECK throws. A thread of a test must hand it to the test's own thread: see
/// run_threads in threads.h.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<std::int64_t>(value);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == 1) {
    out << static_cast<int>(value);
  } else {
    out << value;
  }
  return out.str();
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace hvdtune::testing

#define TEST(test_name)                                                                  \
  static void test_##test_name();                                                        \
  static const hvdtune::testing::Registration register_##test_name(__FILE__, #test_name, \
                                                                   test_##test_name);    \
  static void test_##test_name()

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) hvdtune::testing::fail(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (false)

/// `details` is streamed: CHECK_MSG(x == y, "at " << i).
#define CHECK_MSG(condition, details)                                                      \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::ostringstream check_out;                                                        \
      check_out << "CHECK(" #condition "): " << details; /* NOLINT: a stream expression */ \
      hvdtune::testing::fail(__FILE__, __LINE__, check_out.str());                         \
    }                                                                                      \
  } while (false)

#define CHECK_EQ(left, right)                                                                      \
  do {                                                                                             \
    const auto check_left = (left);                                                                \
    const auto check_right = (right);                                                              \
    if (!(check_left == check_right)) {                                                            \
      hvdtune::testing::fail(                                                                      \
          __FILE__, __LINE__,                                                                      \
          "CHECK_EQ(" #left ", " #right "): " + hvdtune::testing::show(check_left) + " against " + \
              hvdtune::testing::show(check_right));                                                \
    }                                                                                              \
  } while (false)

/// The statement must throw `type`; the message must contain `text`.
#define CHECK_THROWS_WITH(statement, type, text)                                                \
  do {                                                                                          \
    bool check_thrown = false;                                                                  \
    try {                                                                                       \
      statement;                                                                                \
    } catch (const type& check_error) {                                                         \
      check_thrown = true;                                                                      \
      if (std::string(check_error.what()).find(text) == std::string::npos) {                    \
        hvdtune::testing::fail(__FILE__, __LINE__,                                              \
                               #statement " threw \"" + std::string(check_error.what()) +       \
                                   "\", which does not contain \"" + std::string(text) + "\""); \
      }                                                                                         \
    }                                                                                           \
    if (!check_thrown) {                                                                        \
      hvdtune::testing::fail(__FILE__, __LINE__, #statement " did not throw " #type);           \
    }                                                                                           \
  } while (false)

#define CHECK_THROWS(statement, type) CHECK_THROWS_WITH(statement, type, "")
