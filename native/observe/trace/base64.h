#pragma once

#include <cstddef>
#include <string>

namespace hvdtune {

/// Appends `bytes` bytes in base64 (RFC 4648, section 4), padded.
void append_base64(std::string& out, const void* data, std::size_t bytes);

}  // namespace hvdtune
