#include "observe/capture/tensor_runs.h"

#include <algorithm>
#include <cstring>

namespace hvdtune::capture {
namespace {

/// If a run ends because of a long time after fewer tensors than this, it was not worth its 24
/// bytes: the batch continues with wide runs.
constexpr std::uint32_t kWorthARun = 12;

template <typename Value>
std::byte* append(std::byte* to, const std::vector<Value>& values) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(Value));
  return to + values.size() * sizeof(Value);
}

}  // namespace

// ---- packed -------------------------------------------------------------------------------------

void PackedTensors::clear() {
  runs.clear();
  wide.clear();
  narrow.clear();
  tensors = 0;
}

std::size_t PackedTensors::size() const {
  return runs.size() * sizeof(TensorRun) + wide.size() * sizeof(std::int32_t) +
         narrow.size() * sizeof(std::uint16_t);
}

std::span<const std::byte> PackedTensors::bytes() {
  bytes_.resize(size());
  append(append(append(bytes_.data(), runs), wide), narrow);
  return bytes_;
}

std::span<const Tensor> PackedTensors::unpacked() {
  records_.clear();
  auto next_wide = wide.begin();
  auto next_narrow = narrow.begin();
  for (const TensorRun& run : runs) {
    Tensor tensor{run.name, run.batch, run.submitted};
    records_.push_back(tensor);
    for (std::uint32_t left = run.tensors; left > 1; --left) {
      tensor.name += run.stride;
      tensor.submitted += run.width == 4 ? Nanos{*next_wide++} : Nanos{*next_narrow++};
      records_.push_back(tensor);
    }
  }
  return records_;
}

// ---- the ring -----------------------------------------------------------------------------------

// Three quarters for runs: a tensor outside of runs takes 24 bytes there.
TensorRuns::TensorRuns(std::size_t bytes)
    : runs_(bytes / 4 * 3 / sizeof(TensorRun)),
      wide_(bytes / 8 / sizeof(std::int32_t)),
      narrow_(bytes / 8 / sizeof(std::uint16_t)) {}

void TensorRuns::put(const Tensor& tensor) {
  const Nanos later = tensor.submitted - last_;
  if (run_.tensors == 0 || tensor.batch != run_.batch) {
    prefer_wide_ = false;
    return begin_run(tensor);
  }
  const bool fits_narrow = static_cast<std::uint64_t>(later) <= UINT16_MAX;
  if (run_.tensors == 1 && (tensor.name == run_.name || tensor.name == run_.name + 1)) {
    // The second tensor decides the kind of run.
    run_.stride = tensor.name == run_.name ? 0 : 1;
    run_.width = fits_narrow && !prefer_wide_ ? 2 : 4;
    next_ = tensor.name;
  }
  const bool goes_on = tensor.name == next_ && run_.tensors < kLongestRun;
  const auto as_wide = static_cast<std::int32_t>(later);
  if (goes_on && run_.width == 4 && as_wide == later) {
    return go_on(wide_, as_wide, tensor.submitted);
  }
  if (goes_on && run_.width == 2 && fits_narrow) {
    return go_on(narrow_, static_cast<std::uint16_t>(later), tensor.submitted);
  }
  prefer_wide_ = prefer_wide_ || (goes_on && run_.tensors < kWorthARun);
  begin_run(tensor);
}

void TensorRuns::begin_run(const Tensor& tensor) {
  close_run();
  run_ = {tensor.name, tensor.batch, tensor.submitted, 1};
  next_ = tensor.name;
  last_ = tensor.submitted;
}

void TensorRuns::close_run() {
  if (run_.tensors == 0) return;
  room_ = room_ && runs_.has_room(1);
  if (room_) runs_.put(run_);
  put_ += run_.tensors;
  run_.tensors = 0;
}

void TensorRuns::Batch::put_otherwise(std::uint32_t name, Nanos submitted) {
  settle();
  ring_.put({name, batch_, submitted});
  ++count_;
  const TensorRun& run = ring_.run_;
  if (run.width != 2 || run.tensors < 2 || !ring_.room_) return;
  const std::span<std::uint16_t> room = ring_.narrow_.room();
  begin_ = at_ = room.data();
  end_ = begin_ + std::min<std::size_t>(room.size(), kLongestRun - run.tensors);
  next_ = ring_.next_;
  stride_ = run.stride;
  last_ = ring_.last_;
}

/// Updates the ring with everything that was put here.
void TensorRuns::Batch::settle() {
  const auto put = static_cast<std::uint32_t>(at_ - begin_);
  if (put > 0) {
    ring_.narrow_.put_filled(put);
    ring_.run_.tensors += put;
    ring_.next_ = next_;
    ring_.last_ = last_;
    count_ += put;
  }
  begin_ = at_ = end_ = nullptr;
}

bool TensorRuns::publish() {
  close_run();
  if (!room_) {
    runs_.take_back();
    wide_.take_back();
    narrow_.take_back();
    room_ = true;
    put_ = published_.load(std::memory_order_relaxed);
    return false;
  }
  // Publish the runs last.
  published_.store(put_, std::memory_order_release);
  wide_.publish();
  narrow_.publish();
  runs_.publish();
  return true;
}

bool TensorRuns::half_full() {
  const auto beyond = [](auto& ring) {
    const std::size_t half = ring.capacity() / 2;
    return ring.used() > half && ring.look() > half;
  };
  return beyond(runs_) || beyond(narrow_) || beyond(wide_);
}

bool TensorRuns::take(std::size_t tensors, std::size_t bytes, PackedTensors& out) {
  const auto move = [](auto& ring, std::size_t count, auto& to) {
    while (count > 0 && ring.take(count, [&](const auto* records, std::size_t found) {
      to.insert(to.end(), records, records + found);
      count -= found;
    })) {
    }
  };
  bool found = false;
  while (out.tensors < tensors && out.size() < bytes) {
    const std::size_t before = out.runs.size();
    move(runs_, 1, out.runs);
    if (out.runs.size() == before) break;
    found = true;
    const TensorRun& run = out.runs.back();
    out.tensors += run.tensors;
    taken_ += run.tensors;
    if (run.width == 4) {
      move(wide_, run.tensors - 1, out.wide);
    } else {
      move(narrow_, run.tensors - 1, out.narrow);
    }
  }
  return found;
}

}  // namespace hvdtune::capture
