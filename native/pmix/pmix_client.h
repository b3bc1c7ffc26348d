#pragma once

#include <cstddef>
#include <cstdint>

// C, so that a rank can also call it through ctypes. A process is at most one client.
extern "C" {

/// Makes this process a client of its host's PMIx server, through `library`, a libpmix. Waits for
/// the server. False if PMIx does not start; `reason`, of `size` bytes, then says why.
__attribute__((visibility("default"))) bool hvdtune_pmix_begin(const char* library, char* reason,
                                                               std::size_t size);

/// Sends `text` to all processes of the job if this one is `root`, and receives it otherwise. Waits
/// until all have called it with this key. `answer`, of `size` bytes, becomes "told TEXT" or
/// "failed REASON". After `hvdtune_pmix_begin`, from one thread at a time.
__attribute__((visibility("default"))) void hvdtune_pmix_answer(std::uint32_t root, const char* key,
                                                                const char* text, char* answer,
                                                                std::size_t size);

/// Signs off: afterwards the process may end normally.
__attribute__((visibility("default"))) void hvdtune_pmix_end();
}
