#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "collective/kernels/kernels.h"
#include "collective/kernels/segments.h"
#include "reference.h"

namespace hvdtune::testing {

inline KernelOp kernel_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return KernelOp::kMin;
    case ReduceOp::kMax:
      return KernelOp::kMax;
    case ReduceOp::kProduct:
      return KernelOp::kProduct;
    default:
      return KernelOp::kSum;
  }
}

/// Random elements that inputs are cut from: to draw each input anew would take longer than the
/// operations do, under a sanitizer most of all.
inline const Bytes& random_elements(DType dtype) {
  constexpr std::size_t kElements = 1 << 17;
  static std::array<std::once_flag, kDTypeCount> once;
  static std::array<Bytes, kDTypeCount> elements;
  const auto code = static_cast<std::size_t>(dtype);
  std::call_once(once[code], [&] {
    std::mt19937_64 generator(code);
    elements[code].resize(kElements * dtype_size(dtype));
    fill_random(dtype, elements[code].data(), kElements, generator);
  });
  return elements[code];
}

/// The data of all ranks for one operation.
inline std::vector<Bytes> random_inputs(DType dtype, int ranks, std::size_t count,
                                        std::uint64_t seed) {
  std::minstd_rand generator(static_cast<std::uint32_t>(seed));
  const std::size_t element = dtype_size(dtype);
  const Bytes& from = random_elements(dtype);
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(count * element);
    Bytes& input = inputs.back();
    for (std::size_t done = 0; done < input.size();) {
      const std::size_t begin = generator() % (from.size() / element) * element;
      const std::size_t bytes = std::min(input.size() - done, from.size() - begin);
      std::memcpy(input.data() + done, from.data() + begin, bytes);
      done += bytes;
    }
  }
  return inputs;
}

/// What an allreduce of `inputs` must give: scaled values are rounded to the type before and after.
inline Bytes expected_reduction(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                                double prescale, double postscale) {
  const std::size_t count = inputs[0].size() / dtype_size(dtype);
  std::vector<Bytes> scaled;
  std::vector<const void*> sources;
  for (const Bytes& input : inputs) {
    scaled.push_back(
        prescale == 1.0 ? input
                        : reference_reduce(dtype, KernelOp::kSum, {input.data()}, count, prescale));
  }
  for (const Bytes& input : scaled) sources.push_back(input.data());
  return reference_reduce(dtype, kernel_op(op), sources, count, postscale);
}

/// The same, where the inputs of each host are reduced first, and then what comes of it. `hosts`:
/// by rank.
inline Bytes expected_by_hosts(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                               const std::vector<int>& hosts, double prescale, double postscale) {
  std::vector<int> order;
  std::vector<std::vector<Bytes>> by_host;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto known = std::find(order.begin(), order.end(), hosts[rank]);
    const auto host = static_cast<std::size_t>(known - order.begin());
    if (known == order.end()) {
      order.push_back(hosts[rank]);
      by_host.emplace_back();
    }
    by_host[host].push_back(inputs[rank]);
  }
  std::vector<Bytes> sums;
  for (const auto& of_host : by_host) {
    sums.push_back(expected_reduction(dtype, op, of_host, prescale, 1.0));
  }
  return expected_reduction(dtype, op, sums, 1.0, postscale);
}

/// `data` in several pieces, cut between elements.
inline SegmentList pieces(Bytes& data, std::size_t element, std::uint64_t seed) {
  std::minstd_rand generator(static_cast<std::uint32_t>(seed));
  SegmentList list;
  std::size_t done = 0;
  while (done < data.size()) {
    const std::size_t left = (data.size() - done) / element;
    const std::size_t piece = (1 + generator() % left) * element;
    list.add(data.data() + done, piece);
    done += piece;
  }
  return list;
}

inline void check_equal(DType dtype, const Bytes& got, const Bytes& expected,
                        const std::string& what) {
  CHECK_EQ(got.size(), expected.size());
  const auto at =
      first_difference(dtype, got.data(), expected.data(), expected.size() / dtype_size(dtype));
  CHECK_MSG(at < 0, what << " " << dtype_name(dtype) << ": element " << at << " of "
                         << expected.size() / dtype_size(dtype) << " is "
                         << show_element(dtype, got.data(), at) << ", not "
                         << show_element(dtype, expected.data(), at));
}

}  // namespace hvdtune::testing
