// Names of operations that MXNet has been given and has not completed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hvdtune::faces::mxnet {

/// This process's record of a name: its last operation in MXNet's engine, until that is complete.
///
/// Operations that use the same array run one after the other, so they may have the same name. With
/// other operations of one name, it would be ambiguous which of them another rank means. Any thread
/// may call any function.
namespace names {

/// `operation` identifies the operation until leave(). `memory`: of its arrays, and of arrays that
/// order it with others of its name. Throws Error(kInvalidArgument) if an operation without any of
/// this memory has the name.
void enter(const std::string& name, std::uint32_t process_set, const void* operation,
           std::span<void* const> memory);
/// Does nothing if the operation does not have the name any more.
void leave(const std::string& name, std::uint32_t process_set, const void* operation);

}  // namespace names
}  // namespace hvdtune::faces::mxnet
