#pragma once

#include <cstdio>
#include <cstdlib>

/// An invariant that only a bug can break: prints file and line, and aborts.
#define HVD_CHECK(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "hvdtune bug: %s does not hold at %s:%d\n", #condition, __FILE__, \
                   __LINE__);                                                                \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
