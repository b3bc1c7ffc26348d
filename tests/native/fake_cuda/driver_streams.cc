#include <utility>

#include "driver.h"

using namespace fake_cuda;  // NOLINT: the functions of the driver have C's names
using namespace hvdtune;    // NOLINT

namespace fake_cuda {

std::shared_ptr<Stream> stream_of(CudaStream handle) {
  const auto context = current();
  if (!context) return nullptr;
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  const std::lock_guard lock(context->mutex);
  if (number <= 1) return context->legacy;
  if (number == 2) {
    auto& stream = context->per_thread[std::this_thread::get_id()];
    if (!stream) {
      stream = Stream::start(context, true);
      context->blocking.push_back(stream);
    }
    return stream;
  }
  const auto stream = driver().streams.find(handle);
  return stream && &stream->context() == context.get() ? stream : nullptr;
}

void enqueue(Stream& stream, Task task) { stream.enqueue(std::move(task)); }

}  // namespace fake_cuda

namespace {

constexpr unsigned kStreamFlags = kCudaStreamNonBlocking;
constexpr unsigned kEventFlags = 7;

}  // namespace

FAKE_EXPORT CudaResult cuStreamCreateWithPriority(CudaStream* stream, unsigned flags, int) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if ((flags & ~kStreamFlags) != 0) return CudaResult::kInvalidValue;
  const bool blocking = (flags & kCudaStreamNonBlocking) == 0;
  auto made = Stream::start(context, blocking);
  if (blocking) {
    const std::lock_guard lock(context->mutex);
    context->blocking.push_back(made);
  }
  *stream = driver().streams.add(std::move(made));
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuStreamCreate(CudaStream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

FAKE_EXPORT CudaResult cuStreamDestroy_v2(CudaStream stream) {
  return driver().streams.remove(stream) ? CudaResult::kSuccess : CudaResult::kInvalidHandle;
}

FAKE_EXPORT CudaResult cuStreamSynchronize(CudaStream handle) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  stream->mark()->wait();
  return context->failed;
}

FAKE_EXPORT CudaResult cuStreamQuery(CudaStream handle) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  const auto mark = stream->mark();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return mark->reached() ? context->failed.load() : CudaResult::kNotReady;
}

namespace {

/// Whether `stream` is stream 0, and one that waits for it is being captured.
bool implicitly_captured(Context& context, const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(context.mutex);
  if (stream != context.legacy) return false;
  for (const auto& weak : context.blocking) {
    const auto other = weak.lock();
    if (other && other->capturing) return true;
  }
  return false;
}

}  // namespace

FAKE_EXPORT CudaResult cuStreamIsCapturing(CudaStream handle, CudaCapture* capture) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  if (implicitly_captured(*context, stream)) return CudaResult::kStreamCaptureImplicit;
  *capture = stream->capturing ? CudaCapture::kActive : CudaCapture::kNone;
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuStreamBeginCapture_v2(CudaStream handle, int mode) {
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  if (mode < 0 || mode > 2 || stream->capturing.exchange(true)) return CudaResult::kInvalidValue;
  return CudaResult::kSuccess;
}

/// What was captured is forgotten: nobody here runs a graph.
FAKE_EXPORT CudaResult cuStreamEndCapture(CudaStream handle, void** graph) {
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  *graph = nullptr;
  return stream->capturing.exchange(false) ? CudaResult::kSuccess : CudaResult::kInvalidValue;
}

FAKE_EXPORT CudaResult cuStreamWaitEvent(CudaStream handle, CudaEvent event, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  const auto found = driver().events.find(event);
  if (!stream || !found) return CudaResult::kInvalidHandle;
  if (flags > 1) return CudaResult::kInvalidValue;
  if (found->shared) {
    stream->enqueue([shared = found->shared, number = found->shared->recorded()] {
      shared->wait(number);
      return CudaResult::kSuccess;
    });
    return CudaResult::kSuccess;
  }
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(found->mutex);
    mark = found->mark;
  }
  if (!mark) return CudaResult::kSuccess;  // never recorded
  stream->enqueue([mark] {
    mark->wait();
    return CudaResult::kSuccess;
  });
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuEventCreate(CudaEvent* event, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (flags > kEventFlags) return CudaResult::kInvalidValue;
  const bool interprocess = (flags & kCudaEventInterprocess) != 0;
  if (interprocess && (flags & kCudaEventDisableTiming) == 0) return CudaResult::kInvalidValue;
  auto made = std::make_shared<Event>();
  made->context = context;
  made->flags = flags;
  if (interprocess) made->shared = SharedEvent::create();
  *event = driver().events.add(made);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuEventDestroy_v2(CudaEvent event) {
  return driver().events.remove(event) ? CudaResult::kSuccess : CudaResult::kInvalidHandle;
}

FAKE_EXPORT CudaResult cuEventRecord(CudaEvent event, CudaStream handle) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  const auto found = driver().events.find(event);
  if (!stream || !found || found->context != context) return CudaResult::kInvalidHandle;
  if (stream->capturing) return CudaResult::kSuccess;
  // In the stream's order, and so behind stream 0 where the stream waits for it.
  stream->enqueue([] { return CudaResult::kSuccess; });
  if (found->shared) {
    stream->enqueue([shared = found->shared, number = found->shared->record()] {
      shared->reach(number);
      return CudaResult::kSuccess;
    });
  }
  const std::lock_guard lock(found->mutex);
  found->mark = stream->mark();
  return CudaResult::kSuccess;
}

namespace {

/// The last record of an event, null where there is none, or it is another process's: `shared`.
CudaResult recorded(CudaEvent event, std::shared_ptr<Context>& context, std::shared_ptr<Mark>& mark,
                    std::shared_ptr<SharedEvent>& shared) {
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto found = driver().events.find(event);
  if (!found) return CudaResult::kInvalidHandle;
  const std::lock_guard lock(found->mutex);
  mark = found->mark;
  shared = found->shared;
  return CudaResult::kSuccess;
}

}  // namespace

FAKE_EXPORT CudaResult cuEventQuery(CudaEvent event) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Mark> mark;
  std::shared_ptr<SharedEvent> shared;
  const CudaResult result = recorded(event, context, mark, shared);
  if (result == CudaResult::kSuccess && !mark && shared) {
    return shared->done() ? context->failed.load() : CudaResult::kNotReady;
  }
  if (result != CudaResult::kSuccess || !mark) return result;
  return mark->reached() ? context->failed.load() : CudaResult::kNotReady;
}

FAKE_EXPORT CudaResult cuEventSynchronize(CudaEvent event) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Mark> mark;
  std::shared_ptr<SharedEvent> shared;
  const CudaResult result = recorded(event, context, mark, shared);
  if (result == CudaResult::kSuccess && !mark && shared) shared->wait(shared->recorded());
  if (result != CudaResult::kSuccess || !mark) return result;
  mark->wait();
  return context->failed;
}

FAKE_EXPORT CudaResult cuEventElapsedTime(float* milliseconds, CudaEvent from, CudaEvent to) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Mark> marks[2];
  std::shared_ptr<SharedEvent> shared;
  const CudaEvent events[2] = {from, to};
  for (int end = 0; end < 2; ++end) {
    const CudaResult result = recorded(events[end], context, marks[end], shared);
    if (result != CudaResult::kSuccess) return result;
    const auto event = driver().events.find(events[end]);
    if (!marks[end] || !event || (event->flags & kCudaEventDisableTiming) != 0) {
      return CudaResult::kInvalidHandle;
    }
    if (!marks[end]->reached()) return CudaResult::kNotReady;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(marks[1]->when() - marks[0]->when()).count();
  return CudaResult::kSuccess;
}
