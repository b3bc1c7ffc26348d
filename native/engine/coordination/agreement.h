#pragma once

#include <string>

#include "wire/request.h"

namespace hvdtune {

/// Why two ranks' descriptions of one tensor do not match, as one sentence in Horovod's terms;
/// empty if they match. The checks run in Horovod's order; the first difference decides.
/// `first_rank` and `other_rank` are the global ranks that sent them.
std::string disagreement(const wire::Request& first, int first_rank, const wire::Request& other,
                         int other_rank);

/// What is wrong with a description that all ranks share (an allgather of a scalar, …), or empty.
std::string unusable(const wire::Request& request);

}  // namespace hvdtune
