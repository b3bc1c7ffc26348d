// Names of operations that MXNet has been given and has not completed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hvdtune::faces::mxnet {

/// What this process knows of a name: its last operation in MXNet's engine, until that is complete.
///
/// Operations that use one array run one after the other, so they may have one name. Of others,
/// nobody could know which of them another rank means. Any thread may call any function.
namespace names {

/// `operation` stands for the operation until leave(). `memory`: of its arrays, and of those that
/// keep it apart from others with its name.
/// Throws Error(kInvalidArgument) if an operation without any of this memory has the name.
void enter(const std::string& name, std::uint32_t process_set, const void* operation,
           std::span<void* const> memory);
/// Nothing if the operation does not have the name any more.
void leave(const std::string& name, std::uint32_t process_set, const void* operation);

}  // namespace names
}  // namespace hvdtune::faces::mxnet
