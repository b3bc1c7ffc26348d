#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

/// Usage: test_X [TEXT]. Runs the tests whose name contains TEXT; 0 if all of them passed.
int main(int argc, char** argv) {
  const char* filter = argc > 1 ? argv[1] : "";
  int passed = 0;
  int failed = 0;
  for (const auto& test : hvdtune::testing::all_tests()) {
    if (std::strstr(test.name, filter) == nullptr) continue;
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", test.name, error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
