// Events: recorded on streams, queried, waited for; and how a capture spreads through them.
#include <algorithm>
#include <chrono>
#include <memory>
#include <unordered_map>

#include "device.h"
#include "graphs.h"
#include "pools.h"
#include "streams.h"

namespace simcuda {
namespace {

std::unordered_map<cudaEvent_t, EventPointer>& events() {
  static auto* const all = std::make_unique<std::unordered_map<cudaEvent_t, EventPointer>>().release();
  return *all;
}

void add_unique(std::vector<Node*>& nodes, const std::vector<Node*>& more) {
  for (Node* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

cudaError_t record_captured(const StreamPointer& stream, const EventPointer& event, unsigned flags) {
  if (stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if ((flags & cudaEventRecordExternal) != 0) {
    auto node = std::make_shared<Node>();
    node->type = cudaGraphNodeTypeEventRecord;
    node->event = event;
    capture_node(stream, std::move(node));
    return cudaSuccess;
  }
  event->captured = true;
  event->capture = stream->capture;
  event->capture_tail = stream->capture_tail;
  return cudaSuccess;
}

// The stream joins the event's capture, or its captured work waits for the event's.
cudaError_t wait_captured(const StreamPointer& stream, const EventPointer& event, unsigned flags) {
  if ((flags & cudaEventWaitExternal) != 0 && stream->capture != nullptr) {
    auto node = std::make_shared<Node>();
    node->type = cudaGraphNodeTypeWaitEvent;
    node->event = event;
    capture_node(stream, std::move(node));
    return cudaSuccess;
  }
  const auto capture = event->capture.lock();
  if (!event->captured || capture == nullptr || capture->graph == nullptr) {
    if (event->recording == nullptr && !event->captured) return cudaSuccess;
    if (stream->capture == nullptr) return cudaErrorCapturedEvent;  // its capture has ended
    invalidate(*stream->capture);
    return cudaErrorStreamCaptureIsolation;
  }
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (stream->capture != nullptr && stream->capture != capture) {
    invalidate(*stream->capture);
    invalidate(*capture);
    return cudaErrorStreamCaptureMerge;
  }
  if (stream->capture == nullptr) {
    if (stream->legacy) {
      invalidate(*capture);
      return cudaErrorStreamCaptureImplicit;
    }
    stream->capture = capture;
    stream->capture_tail.clear();
    capture->streams.push_back(stream);
  }
  add_unique(stream->capture_tail, event->capture_tail);
  return cudaSuccess;
}

cudaError_t refuse_captured(const EventPointer& event) {
  if (!event->captured) return cudaSuccess;
  if (const auto capture = event->capture.lock(); capture != nullptr) invalidate(*capture);
  return cudaErrorCapturedEvent;
}

}  // namespace

EventPointer find_event(cudaEvent_t handle) {
  const auto found = events().find(handle);
  return found == events().end() ? nullptr : found->second;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  if (handle == nullptr || flags > 7) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  auto event = std::make_shared<Event>();
  event->device = current_device();
  event->flags = flags;
  *handle = reinterpret_cast<cudaEvent_t>(event.get());
  events()[*handle] = std::move(event);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

SIMCUDA_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const Lock lock(driver_lock());
  return result(events().erase(handle) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

SIMCUDA_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  const EventPointer event = find_event(handle);
  const StreamPointer stream = find_stream(stream_handle);
  if (event == nullptr || stream == nullptr || event->device != stream->device)
    return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return result(error);
  if (stream->capture != nullptr) return result(record_captured(stream, event, flags));
  event->captured = false;
  event->recording = record_end(stream);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

SIMCUDA_EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const Lock lock(driver_lock());
  const EventPointer event = find_event(handle);
  if (event == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_captured(event); error != cudaSuccess) return result(error);
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  return result(event->recording == nullptr || event->recording->complete ? cudaSuccess : cudaErrorNotReady);
}

SIMCUDA_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Lock lock(driver_lock());
  const EventPointer event = find_event(handle);
  if (event == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_captured(event); error != cudaSuccess) return result(error);
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  if (event->recording != nullptr) finish(lock, std::shared_ptr<Recording>(event->recording));
  trim_pools(event->device);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  const EventPointer event = find_event(handle);
  const StreamPointer stream = find_stream(stream_handle);
  if (event == nullptr || stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return result(error);
  if (stream->capture != nullptr && stream->capture->invalidated) return result(cudaErrorStreamCaptureInvalidated);
  if (stream->capture != nullptr || event->captured) return result(wait_captured(stream, event, flags));
  if (event->recording != nullptr && !event->recording->complete) {
    enqueue(stream, {Operation::Kind::kWait, event->recording, {}});
  }
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  const Lock lock(driver_lock());
  const EventPointer start = find_event(start_handle);
  const EventPointer end = find_event(end_handle);
  if (milliseconds == nullptr) return result(cudaErrorInvalidValue);
  if (start == nullptr || end == nullptr || start->device != end->device) return result(cudaErrorInvalidResourceHandle);
  for (const EventPointer& event : {start, end}) {
    if ((event->flags & cudaEventDisableTiming) != 0 || event->recording == nullptr) {
      return result(cudaErrorInvalidResourceHandle);
    }
    if (event->captured) return result(cudaErrorCapturedEvent);
  }
  if (!start->recording->complete || !end->recording->complete) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->recording->at - start->recording->at).count();
  return cudaSuccess;
}
