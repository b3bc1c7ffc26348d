#include "collective/adasum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/half.h"

namespace hvdtune {
namespace {

/// Elements [begin, end) of a tensor.
struct Range {
  std::size_t begin;
  std::size_t end;

  [[nodiscard]] std::size_t size() const { return end - begin; }
  [[nodiscard]] std::size_t middle() const { return begin + (size() + 1) / 2; }
};

/// A member's part of a tensor after all members have halved at all distances below `distance`.
/// Each tensor is halved separately: the parts in which its products are summed must not depend on
/// the other tensors of the batch, that is, on timing.
Range held_by(int member, int distance, std::size_t elements) {
  Range range{0, elements};
  for (int d = 1; d < distance; d *= 2) {
    (((member & d) == 0) ? range.end : range.begin) = range.middle();
  }
  return range;
}

/// The three sums that decide how a and b are combined.
struct Products {
  double aa = 0;
  double bb = 0;
  double ab = 0;
};
constexpr std::size_t kProducts = 3;

/// Several sums side by side: the compiler may not reorder a single sum, but can vectorise these.
template <typename W>
Products products_of(const W* a, const W* b, std::size_t count) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> aa{};
  std::array<double, kLanes> bb{};
  std::array<double, kLanes> ab{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(a[i + lane]);
      const auto y = static_cast<double>(b[i + lane]);
      aa[lane] += x * x;
      bb[lane] += y * y;
      ab[lane] += x * y;
    }
  }
  Products sum;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum.aa += aa[lane];
    sum.bb += bb[lane];
    sum.ab += ab[lane];
  }
  for (; i < count; ++i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    sum.aa += x * x;
    sum.bb += y * y;
    sum.ab += x * y;
  }
  return sum;
}

double coefficient(double dot, double squared_norm) {
  static const double tiny = std::sqrt(DBL_MIN);
  return squared_norm < tiny ? 1.0 : 1.0 - dot / squared_norm * 0.5;
}

// ---- conversion between the tensors and the working type ----------------------------------------

template <typename W, typename T, typename Convert>
void load_as(const SegmentList& from, double scale, W* to, Convert&& convert) {
  from.for_range(0, from.bytes(), [&](const std::byte* piece, std::size_t bytes) {
    const auto* values = reinterpret_cast<const T*>(piece);
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
      *to++ = convert(values[i]) * static_cast<W>(scale);
    }
  });
}

void load(const SegmentList& from, DType dtype, double scale, float* to) {
  if (dtype == DType::kFloat16) {
    load_as<float, std::uint16_t>(from, scale, to, float16_to_float);
  } else if (dtype == DType::kBfloat16) {
    load_as<float, std::uint16_t>(from, scale, to, bfloat16_to_float);
  } else {
    load_as<float, float>(from, scale, to, [](float value) { return value; });
  }
}

void load(const SegmentList& from, DType, double scale, double* to) {
  load_as<double, double>(from, scale, to, [](double value) { return value; });
}

template <typename T, typename W, typename Convert>
void store_as(const W* from, std::size_t count, double scale, std::byte* to, Convert&& convert) {
  auto* values = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < count; ++i) values[i] = convert(from[i] * static_cast<W>(scale));
}

void store(const float* from, std::size_t count, DType dtype, double scale, std::byte* to) {
  if (dtype == DType::kFloat16) {
    store_as<std::uint16_t>(from, count, scale, to, float_to_float16);
  } else if (dtype == DType::kBfloat16) {
    store_as<std::uint16_t>(from, count, scale, to, float_to_bfloat16);
  } else {
    store_as<float>(from, count, scale, to, [](float value) { return value; });
  }
}

void store(const double* from, std::size_t count, DType, double scale, std::byte* to) {
  store_as<double>(from, count, scale, to, [](double value) { return value; });
}

/// One call of adasum(). W is the working type.
template <typename W>
class Adasum {
 public:
  Adasum(Communicator& communicator, const AdasumJob& job)
      : communicator_(communicator),
        job_(job),
        elements_(job.in.bytes() / dtype_size(job.dtype)),
        data_(std::make_unique_for_overwrite<W[]>(elements_)) {}

  PhaseTimes run() {
    PhaseTimes times;
    load(job_.in, job_.dtype, job_.prescale, data_.get());
    times.packed = monotonic_now();
    received_ = std::make_unique_for_overwrite<W[]>(held_in_all(0, 2));
    for (int distance = 1; distance < communicator_.size(); distance *= 2) combine_at(distance);
    gather();
    times.unpacking = monotonic_now();
    return times;
  }

 private:
  /// Elements of all tensors together. Member 0 always has the longer half, and so the most of all
  /// members.
  [[nodiscard]] std::size_t held_in_all(int member, int distance) const {
    std::size_t sum = 0;
    for (const std::size_t elements : job_.elements) {
      sum += held_by(member, distance, elements).size();
    }
    return sum;
  }

  void combine_at(int distance) {
    const int self = communicator_.index();
    const int partner = self ^ distance;
    SegmentList in;
    for_held(partner, 2 * distance, [&](std::size_t, W* part, std::size_t count, std::size_t) {
      in.add(part, count * sizeof(W));
    });
    SegmentList out;
    out.add(received_.get(), held_in_all(self, 2 * distance) * sizeof(W));
    communicator_.sendrecv({partner, in, out, held_in_all(0, 2 * distance) * sizeof(W)});

    const bool lower = (self & distance) == 0;
    std::vector<Products> parts(job_.elements.size());
    for_held(self, 2 * distance,
             [&](std::size_t tensor, const W* mine, std::size_t count, std::size_t before) {
               const W* theirs = &received_[before];
               parts[tensor] = products_of(lower ? mine : theirs, lower ? theirs : mine, count);
             });
    const std::vector<Products> sums = sum_over_group(distance, parts);
    for_held(self, 2 * distance,
             [&](std::size_t tensor, W* mine, std::size_t count, std::size_t before) {
               const Products& sum = sums[tensor];
               const double ca = coefficient(sum.ab, sum.aa);
               const double cb = coefficient(sum.ab, sum.bb);
               const W* a = lower ? mine : &received_[before];
               const W* b = lower ? &received_[before] : mine;
               for (std::size_t i = 0; i < count; ++i) {
                 mine[i] = static_cast<W>(ca * static_cast<double>(a[i]) +
                                          cb * static_cast<double>(b[i]));
               }
             });
  }

  /// Calls visit(tensor, part, count, before) for `member`'s part of every tensor: its address
  /// here, its number of elements, and the number of elements of the earlier tensors' parts.
  template <typename Visit>
  void for_held(int member, int distance, Visit&& visit) const {
    W* first = data_.get();
    std::size_t before = 0;
    for (std::size_t tensor = 0; tensor < job_.elements.size(); ++tensor) {
      const Range held = held_by(member, distance, job_.elements[tensor]);
      if (held.size() > 0) visit(tensor, first + held.begin, held.size(), before);
      before += held.size();
      first += job_.elements[tensor];
    }
  }

  /// Adds the parts of the 2 × distance members that hold these two subtrees, in their order, so
  /// that all get the same bits.
  std::vector<Products> sum_over_group(int distance, const std::vector<Products>& parts) {
    std::vector<std::int64_t> mine;
    for (const Products& part : parts) {
      for (const double value : {part.aa, part.bb, part.ab}) {
        mine.push_back(std::bit_cast<std::int64_t>(value));
      }
    }
    const std::vector<std::int64_t> all = communicator_.exchange(mine);
    const int first = communicator_.index() / (2 * distance) * (2 * distance);
    std::vector<Products> sums(parts.size());
    for (int member = first; member < first + 2 * distance; ++member) {
      const std::int64_t* theirs = &all[static_cast<std::size_t>(member) * mine.size()];
      for (std::size_t tensor = 0; tensor < sums.size(); ++tensor, theirs += kProducts) {
        sums[tensor].aa += std::bit_cast<double>(theirs[0]);
        sums[tensor].bb += std::bit_cast<double>(theirs[1]);
        sums[tensor].ab += std::bit_cast<double>(theirs[2]);
      }
    }
    return sums;
  }

  void gather() {
    const std::size_t width = dtype_size(job_.dtype);
    const int members = communicator_.size();
    const int self = communicator_.index();
    const std::size_t bytes_of_own = held_in_all(self, members) * width;
    auto typed = std::make_unique_for_overwrite<std::byte[]>(bytes_of_own);
    for_held(self, members, [&](std::size_t, const W* part, std::size_t count, std::size_t before) {
      store(part, count, job_.dtype, job_.postscale, &typed[before * width]);
    });
    SegmentList in;
    in.add(typed.get(), bytes_of_own);
    std::vector<SegmentList> out(static_cast<std::size_t>(members));
    for (int member = 0; member < members; ++member) {
      for_held(member, members, [&](std::size_t, const W* part, std::size_t count, std::size_t) {
        const auto begin = static_cast<std::size_t>(part - data_.get());
        job_.out.for_range(begin * width, count * width, [&](std::byte* piece, std::size_t bytes) {
          out[static_cast<std::size_t>(member)].add(piece, bytes);
        });
      });
    }
    communicator_.allgather({in, out});
  }

  Communicator& communicator_;
  const AdasumJob& job_;
  std::size_t elements_;
  std::unique_ptr<W[]> data_;
  std::unique_ptr<W[]> received_;
};

}  // namespace

bool adasum_supports(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

PhaseTimes adasum(Communicator& communicator, const AdasumJob& job) {
  HVD_CHECK(adasum_supports(job.dtype) && job.in.bytes() == job.out.bytes());
  HVD_CHECK(std::has_single_bit(static_cast<unsigned>(communicator.size())));
  return job.dtype == DType::kFloat64 ? Adasum<double>(communicator, job).run()
                                      : Adasum<float>(communicator, job).run();
}

}  // namespace hvdtune
