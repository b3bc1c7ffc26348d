// A rank's child that speaks to its host's PMIx server:
//
//     pmix_program LIBRARY
//
// It answers each line "ROOT KEY TEXT" of its standard input with "told TEXT" or "failed REASON",
// and stays in PMIx until the input, or an empty line, ends it. If PMIx does not start, it prints
// "absent REASON".

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pmix/pmix_client.h"

namespace {

constexpr std::size_t kLongest = 4096;  // of a line

void say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  char line[kLongest];
  char said[kLongest] = "absent ";
  const std::size_t used = std::strlen(said);
  if (count != 2 || !hvdtune_pmix_begin(words[1], said + used, sizeof said - used)) {
    say(said);
    return 1;
  }
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    char* rest = line;
    const char* root = strsep(&rest, " ");
    const char* key = strsep(&rest, " ");
    const char* text = strsep(&rest, "\n");
    if (key == nullptr || text == nullptr) {
      break;
    }
    hvdtune_pmix_answer(static_cast<std::uint32_t>(std::strtoul(root, nullptr, 10)), key, text,
                        said, sizeof said);
    say(said);
  }
  hvdtune_pmix_end();
  // Skip the destructors of PMIx's plugins.
  _exit(0);
}
