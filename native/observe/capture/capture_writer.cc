#include "observe/capture/capture_writer.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/threads/signals_blocked.h"

#include "observe/trace/base64.h"
#include "observe/trace/trace_format.h"

namespace hvdtune::capture {
namespace {

/// Period of appends, each of which takes at least a tenth of a millisecond. A killed process loses
/// at most the records of one period.
constexpr std::chrono::milliseconds kPeriod(500);
/// Period of checks whether the buffers are too full to wait for that.
constexpr std::chrono::milliseconds kLook(100);
/// Bytes of a block's records (tensors packed), and of one append's text. This thread must hold
/// that much at once, and a reader up to eight times as much.
constexpr std::size_t kBlockBytes = 192 << 10;
constexpr std::size_t kAppendBytes = 512 << 10;

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

Writer::Writer(Buffers& buffers, int rank, Ended ended)
    : buffers_(buffers), rank_(rank), ended_(std::move(ended)) {}

Writer::~Writer() {
  finish("the process ended");
  if (thread_.joinable()) thread_.join();
}

std::string Writer::start(const std::string& path, std::string_view identity, std::size_t limit,
                          int claimed) {
  std::string first;
  append_event(first, "hvdtune_identity", rank_);
  first.erase(0, 2);  // it is the first event
  first += identity;
  first += "}}";
  // If the file is full, whole appends are dropped.
  limited_ = limit > 0;
  append_bytes_ = limit == 0 ? kAppendBytes : std::min(kAppendBytes, limit / 8);
  path_ = path;
  std::string error = file_.open(path, rank_, first, limit, claimed);
  if (!error.empty()) return error;
  const SignalsBlocked blocked;
  running_ = true;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failure) {
    running_ = false;
    error = "cannot start the timeline's thread: " + std::string(failure.what());
  }
  return error;
}

void Writer::wake() {
  {
    const std::lock_guard lock(mutex_);
    wake_ = true;
  }
  changed_.notify_all();
}

void Writer::finish(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
    reason_ = reason;
  }
  changed_.notify_all();
}

void Writer::join() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
}

bool Writer::running() {
  const std::lock_guard lock(mutex_);
  return running_;
}

void Writer::run() {
  pthread_setname_np(pthread_self(), "hvd-timeline");
  ended_(write_file());
  const std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

/// Writes until finish() or a failure; returns the reason of a failure.
std::string Writer::write_file() {
  for (bool last = false; !last;) {
    last = wait_until_due();
    if (!write_pending()) return file_.error();
  }
  std::string end;
  append_event(end, "hvdtune_end", rank_);
  end += "\"reason\":";
  append_json_string(end, reason_);
  end += ",\"records\":{";
  append_counts(end, records_written_);
  end += "}}}";
  const bool whole = file_.append(end, {});
  file_.close();
  return whole ? std::string() : file_.error();
}

/// Returns whether the writer must end.
bool Writer::wait_until_due() {
  const auto due = std::chrono::steady_clock::now() + kPeriod;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const bool woken = changed_.wait_for(lock, kLook, [this] { return wake_ || finishing_; });
      wake_ = false;
      if (woken) return finishing_;
    }
    if (std::chrono::steady_clock::now() >= due || buffers_.half_full()) return false;
  }
}

bool Writer::write_pending() {
  while (append_blocks()) {
    if (!flush()) return false;
  }
  append_drops();
  return flush();
}

/// Takes the records of one append; returns false if there were no more than that. Takes batches
/// with their tensors, as far as they have room, because whole appends are dropped from a file that
/// grows too long.
bool Writer::append_blocks() {
  if (tensors_due_ == 0) take_batches();
  take_ready();
  take_shared(buffers_.waits, Stream::kWaits, waits_);
  take_shared(buffers_.marks, Stream::kMarks, marks_);
  take_shared(buffers_.counters, Stream::kCounters, counters_);
  take_tensors();
  return blocks_.size() >= append_bytes_ || !took_all_batches_ || tensors_due_ > 0;
}

/// Takes as many batches as there is room for with their tensors, at least one. Most tensors are in
/// runs; only if the file has a limit must there also be room for others, since whole appends are
/// dropped then.
void Writer::take_batches() {
  batches_.clear();
  std::size_t bytes = 0;
  took_all_batches_ = false;
  const std::size_t tensor_bytes = limited_ ? sizeof(Tensor) : sizeof(std::int32_t);
  const auto keep = [&](const Batch* batch, std::size_t) {
    batches_.push_back(*batch);
    bytes += sizeof(Batch) + batch->tensors * tensor_bytes;
    tensors_due_ += batch->tensors;
  };
  // Base64 makes them a third longer.
  const std::size_t room = std::min(kBlockBytes, append_bytes_ / 2);
  while (bytes < room && !took_all_batches_) took_all_batches_ = !buffers_.batches.take(1, keep);
  // Also take the tensors of batches that were lost.
  if (took_all_batches_) tensors_due_ = buffers_.tensors.available();
  if (batches_.empty()) return;
  append_block(Stream::kBatches, batches_.data(), batches_.size(), batches_.size() * sizeof(Batch));
}

/// Takes the tensors of the taken batches.
void Writer::take_tensors() {
  const std::size_t largest = std::min(kBlockBytes, append_bytes_ / 2);
  while (blocks_.size() < append_bytes_ && tensors_due_ > 0) {
    packed_.clear();
    if (!buffers_.tensors.take(tensors_due_, largest, packed_)) {
      tensors_due_ = 0;  // lost, or not there yet
      break;
    }
    const std::size_t count = packed_.tensors;
    tensors_due_ -= std::min(tensors_due_, count);
    if (packed_.size() < count * sizeof(Tensor)) {
      append_block(Stream::kTensors, packed_.bytes().data(), count, packed_.size(),
                   packed_.runs.size());
    } else {
      const auto records = packed_.unpacked();
      append_block(Stream::kTensors, records.data(), count, records.size_bytes());
    }
  }
}

void Writer::take_ready() {
  const std::size_t largest = std::min(kBlockBytes, append_bytes_ / 2) / sizeof(Ready);
  const auto append = [&](const Ready* records, std::size_t count) {
    append_block(Stream::kReady, records, count, count * sizeof(Ready));
  };
  while (blocks_.size() < append_bytes_ && buffers_.ready.take(largest, append)) {
  }
}

template <typename Record>
void Writer::take_shared(SharedRing<Record>& ring, Stream stream, std::vector<Record>& records) {
  records.clear();
  Record record;
  while (records.size() * sizeof(Record) < kBlockBytes && ring.take(record)) {
    records.push_back(record);
  }
  if (!records.empty()) {
    append_block(stream, records.data(), records.size(), records.size() * sizeof(Record));
  }
}

void Writer::append_block(Stream stream, const void* records, std::size_t count, std::size_t bytes,
                          std::size_t runs) {
  append_event(blocks_, "hvdtune_block", rank_);
  blocks_ += "\"stream\":\"";
  blocks_ += kStreamNames[static_cast<std::size_t>(stream)];
  blocks_ += "\",\"first\":";
  blocks_ += std::to_string(records_written_[static_cast<std::size_t>(stream)]);
  records_written_[static_cast<std::size_t>(stream)] += count;
  blocks_ += ",\"count\":";
  blocks_ += std::to_string(count);
  if (runs > 0) {
    blocks_ += ",\"runs\":";
    blocks_ += std::to_string(runs);
  }
  blocks_ += ",\"data\":\"";
  append_base64(blocks_, records, bytes);
  blocks_ += "\"}}";
}

void Writer::append_items(std::string_view event, std::string_view key, std::string_view items) {
  if (items.empty()) return;
  append_event(lasting_, event, rank_);
  lasting_ += '"';
  lasting_ += key;
  lasting_ += "\":[";
  lasting_ += items;
  lasting_ += "]}}";
}

void Writer::append_drops() {
  std::array<std::uint64_t, kStreams> dropped{};
  for (std::size_t stream = 0; stream < kStreams; ++stream) {
    dropped[stream] = buffers_.dropped[stream].load(std::memory_order_relaxed);
  }
  if (dropped == drops_written_) return;
  drops_written_ = dropped;
  append_event(lasting_, "hvdtune_dropped", rank_);
  append_counts(lasting_, dropped);
  lasting_ += "}}";
}

/// Members of an object, by stream.
void Writer::append_counts(std::string& out, const std::array<std::uint64_t, kStreams>& counts) {
  for (std::size_t stream = 0; stream < kStreams; ++stream) {
    if (stream > 0) out += ',';
    out += '"';
    out += kStreamNames[stream];
    out += "\":";
    out += std::to_string(counts[stream]);
  }
}

/// Names are taken after the records: a name is always added before a record that refers to it.
bool Writer::flush() {
  Buffers::Pending pending;
  {
    const std::lock_guard lock(buffers_.mutex);
    pending = std::exchange(buffers_.pending, {});
  }
  append_items("hvdtune_names", "names", pending.names);
  append_items("hvdtune_texts", "texts", pending.texts);
  lasting_ += pending.events;
  const bool ok = file_.append(lasting_, blocks_);
  lasting_.clear();
  blocks_.clear();
  return ok;
}

}  // namespace hvdtune::capture
