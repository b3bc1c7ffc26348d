#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "wire/request.h"

namespace hvdtune {

/// The timeline's row of a tensor: its name, and its process set unless that is the whole job.
inline std::string timeline_row(const wire::Request& request, std::size_t tensor) {
  std::string row = request.tensors.empty() ? request.name : wire::tensor_name(request, tensor);
  if (request.process_set != 0) {
    row += " (process set " + std::to_string(request.process_set) + ")";
  }
  return row;
}

/// Calls visit(row) for the row of each tensor of a request.
template <typename Visit>
void for_each_row(const wire::Request& request, Visit&& visit) {
  const std::size_t rows = std::max<std::size_t>(request.tensors.size(), 1);
  for (std::size_t i = 0; i < rows; ++i) visit(timeline_row(request, i));
}

}  // namespace hvdtune
