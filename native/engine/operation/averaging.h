#pragma once

#include "wire/request.h"

namespace hvdtune {

// As in Horovod, Average is Sum with a factor: a multiplication by 1/n in double precision.

inline ReduceOp plain_reduction(ReduceOp op) {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
}

inline double total_postscale(const wire::Request& request, int members) {
  return request.reduce_op == ReduceOp::kAverage ? request.postscale * (1.0 / members)
                                                 : request.postscale;
}

}  // namespace hvdtune
