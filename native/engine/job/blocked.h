#pragma once

#include <cstdint>

#include "wire/messages.h"

namespace hvdtune {

/// What a rank's user thread is blocked on, as one word in shared memory (Doorbell::blocked_on):
/// the coordinator closes a batch at once if a rank is blocked on one of its tensors.
namespace blocked {

inline constexpr std::uint64_t kNothing = 0;
/// Perhaps on everything in flight: a submitter with a callback does not say what it waits for.
inline constexpr std::uint64_t kEverything = ~std::uint64_t{0};
inline constexpr std::uint64_t kTicketFlag = 1ULL << 63;

inline std::uint64_t on_slot(wire::Slot slot) { return std::uint64_t{slot} + 1; }
inline std::uint64_t on_ticket(wire::Ticket ticket) { return ticket | kTicketFlag; }

inline bool is_ticket(std::uint64_t word) { return (word & kTicketFlag) != 0; }
inline wire::Ticket ticket_of(std::uint64_t word) { return word & ~kTicketFlag; }
inline wire::Slot slot_of(std::uint64_t word) { return static_cast<wire::Slot>(word - 1); }

}  // namespace blocked
}  // namespace hvdtune
