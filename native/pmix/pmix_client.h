#pragma once

#include <cstddef>
#include <cstdint>

// C, so that a rank can call it through ctypes, too. A process is at most one client.
extern "C" {

/// Makes this process a client of its host's PMIx server, through `library`, a libpmix. Waits for
/// the server. False if PMIx does not begin; `reason`, of `size` bytes, then says why.
__attribute__((visibility("default"))) bool hvdtune_pmix_begin(const char* library, char* reason,
                                                               std::size_t size);

/// Tells `text` to all processes of the job if this one is `root`, and learns it otherwise. Waits
/// until all have called it with this key. `answer`, of `size` bytes, becomes "told TEXT" or
/// "failed REASON". After `hvdtune_pmix_begin`, from one thread at a time.
__attribute__((visibility("default"))) void hvdtune_pmix_answer(std::uint32_t root, const char* key,
                                                                const char* text, char* answer,
                                                                std::size_t size);

/// Signs off: after that an end of the process is in order.
__attribute__((visibility("default"))) void hvdtune_pmix_end();
}
