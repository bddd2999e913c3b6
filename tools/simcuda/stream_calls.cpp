// The runtime's stream calls, and two functions of our own that keep a stream's work pending.
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "device.h"
#include "pools.h"
#include "streams.h"

namespace simcuda {
namespace {

struct Streams {
  std::unordered_map<cudaStream_t, StreamPointer> named;
  std::map<int, StreamPointer> legacy;  // by device
  unsigned long long next_id = 1;
};

Streams& streams() {
  static auto* const all = std::make_unique<Streams>().release();
  return *all;
}

StreamPointer make_stream(int device, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = streams().next_id++;
  return stream;
}

thread_local std::map<int, StreamPointer> per_thread_streams;

}  // namespace

StreamPointer legacy_stream(int device) {
  StreamPointer& stream = streams().legacy[device];
  if (stream == nullptr) {
    stream = make_stream(device, cudaStreamDefault, 0);
    stream->legacy = true;
  }
  return stream;
}

StreamPointer find_stream(cudaStream_t handle) {
  const int device = current_device();
  if (handle == nullptr || handle == cudaStreamLegacy) return device < 0 ? nullptr : legacy_stream(device);
  if (handle == cudaStreamPerThread) {
    StreamPointer& stream = per_thread_streams[device];
    if (stream == nullptr) stream = make_stream(device, cudaStreamDefault, 0);
    stream->handle = handle;
    return stream;
  }
  const auto found = streams().named.find(handle);
  return found == streams().named.end() ? nullptr : found->second;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  if (handle == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0)
    return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  const StreamPointer stream = make_stream(current_device(), flags, std::clamp(priority, -5, 0));
  stream->handle = reinterpret_cast<cudaStream_t>(stream.get());
  streams().named[stream->handle] = stream;
  *handle = stream->handle;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

SIMCUDA_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

SIMCUDA_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  std::shared_ptr<Graph> spoiled;  // outlives the lock
  const Lock lock(driver_lock());
  const auto found = streams().named.find(handle);
  if (found == streams().named.end()) return result(cudaErrorInvalidResourceHandle);
  const StreamPointer stream = found->second;
  if (stream->capture != nullptr) spoiled = abandon_capture(std::shared_ptr<Capture>(stream->capture));
  streams().named.erase(found);
  stream->held = false;  // its work continues: without a handle the program cannot release it
  advance_all();
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    invalidate(*stream->capture);
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  return result(idle(stream) ? cudaSuccess : cudaErrorNotReady);
}

SIMCUDA_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    invalidate(*stream->capture);
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return result(error);
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  finish_stream(lock, stream);
  trim_pools(stream->device);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  Lock lock(driver_lock());
  const int device = current_device();
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  if (device_is_capturing(device)) return result(cudaErrorStreamCaptureUnsupported);
  finish_device(lock, device);
  trim_pools(device);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *id = stream->id;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* ordinal) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *ordinal = ordinal_of_device(stream->device);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  bool captured = false;
  Task task;
  task.type = cudaGraphNodeTypeHost;
  task.host = [=] { function(data); };
  return result(submit(handle, std::move(task), &captured));
}

SIMCUDA_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                                 unsigned) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  bool captured = false;
  Task task;
  task.type = cudaGraphNodeTypeHost;
  task.host = [=] { callback(handle, cudaSuccess, data); };
  return result(submit(handle, std::move(task), &captured));
}

// Further work on the stream stays pending until the stream is released or a call waits for it. Simulates a long
// kernel, for tests.
SIMCUDA_EXPORT int simcuda_hold_stream(void* handle) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(static_cast<cudaStream_t>(handle));
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  stream->held = true;
  return cudaSuccess;
}

SIMCUDA_EXPORT int simcuda_release_stream(void* handle) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(static_cast<cudaStream_t>(handle));
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  stream->held = false;
  advance_all();
  return cudaSuccess;
}
