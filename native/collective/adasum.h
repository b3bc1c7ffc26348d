#pragma once

#include <cstddef>
#include <vector>

#include "collective/communicator.h"

namespace hvdtune {

// Adasum (Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021):
//
//     adasum(a, b) = (1 - a·b / (2 |a|²)) a  +  (1 - a·b / (2 |b|²)) b
//
// per tensor, over a binary tree: members 0 and 1, 2 and 3, …, then pairs of pairs. Orthogonal
// gradients add up, equal ones give their average.
//
//   symbol   meaning                                    type
//   a, b     one tensor of the lower, the upper subtree  float32, or float64 for float64 tensors
//   a·b      dot product over the whole tensor           float64
//   |a|²     squared norm over the whole tensor          float64
//
// A coefficient is 1 if the squared norm is below sqrt(DBL_MIN): a zero tensor changes nothing.

struct AdasumJob {
  const SegmentList& in;   ///< the tensors, end to end
  const SegmentList& out;  ///< same bytes as `in`; may be the same memory, piece by piece
  const std::vector<std::size_t>& elements;  ///< of each tensor, in the order of `in`
  DType dtype;                               ///< adasum_supports() it
  double prescale = 1.0;
  double postscale = 1.0;
};

/// The floating-point types. float16 and bfloat16 are computed in float32 and rounded once.
bool adasum_supports(DType dtype);

/// Reduces by recursive halving: at distance d = 1, 2, 4, … members i and i ^ d exchange halves of
/// their part of each tensor, combine them, and keep one half; at the end the parts are gathered.
/// Each member sends about twice the tensors' bytes, whatever the number of members, which must be
/// a power of two. A tensor's bits do not depend on the others. Collective, with a Communicator's
/// rules: bitwise equal results everywhere, Error(kAborted).
PhaseTimes adasum(Communicator& communicator, const AdasumJob& job);

}  // namespace hvdtune
