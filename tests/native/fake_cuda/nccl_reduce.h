#pragma once

#include <vector>

#include "nccl_meeting.h"

namespace fake_cuda {

std::size_t nccl_size(NcclType type);

/// out = all of `in`, in their order, reduced; `scalar` is what each is multiplied with before.
void nccl_reduce(std::byte* out, const std::vector<const std::byte*>& in, std::size_t count,
                 NcclType type, NcclOp op, double scalar);

}  // namespace fake_cuda
