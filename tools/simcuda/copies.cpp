// Copies and fills. They execute immediately: no kernel runs in between, so no program can observe the difference.
#include <cstring>
#include <functional>

#include "address_space.h"
#include "content.h"
#include "device.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

bool on_device(const void* pointer) {
  const Allocation* found = find_allocation(address_of(pointer));
  return found != nullptr && found->on_device();
}

// Decides under the lock and copies without it, so large copies of several threads run at the same time.
void copy_now(void* target, const void* source, uint64_t size) {
  if (size == 0) return;
  bool keep = false;
  bool zero = false;
  {
    const Lock lock(driver_lock());
    keep = may_keep(address_of(target), size);
    const bool from_device = on_device(source);
    zero = from_device && size <= kNumber && !written_since_launch(address_of(source), size);
    const bool fresh = !from_device || (size <= kNumber && !zero);
    if (keep && fresh && on_device(target)) note_written(address_of(target), size);
  }
  if (zero) {
    std::memset(target, 0, size);
  } else if (keep) {
    std::memmove(target, source, size);
  }
}

void fill_now(void* target, int value, uint64_t size) {
  bool zero = false;
  bool keep = false;
  {
    const Lock lock(driver_lock());
    const bool device = on_device(target);
    zero = value == 0 && device;  // costs no memory, however large
    keep = zero || may_keep(address_of(target), size);
    if (keep && device) note_written(address_of(target), size);
  }
  if (zero) {
    zero_addresses(address_of(target), size);
  } else if (keep) {
    std::memset(target, value, size);
  }
}

cudaError_t do_on_stream(cudaStream_t stream, cudaGraphNodeType type, std::function<void()> copy) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  bool captured = false;
  Task task;
  task.type = type;
  task.copy = copy;
  const cudaError_t error = submit(stream, std::move(task), &captured);
  if (error == cudaSuccess && !captured) copy();
  return error;
}

cudaError_t copy_on_stream(void* target, const void* source, size_t size, cudaStream_t stream) {
  if (size > 0 && (target == nullptr || source == nullptr)) return cudaErrorInvalidValue;
  return do_on_stream(stream, cudaGraphNodeTypeMemcpy, [=] { copy_now(target, source, size); });
}

cudaError_t copy_rows(void* target, size_t target_pitch, const void* source, size_t source_pitch, size_t width,
                      size_t height, cudaStream_t stream) {
  if (width > target_pitch || width > source_pitch) return cudaErrorInvalidPitchValue;
  return do_on_stream(stream, cudaGraphNodeTypeMemcpy, [=] {
    {
      const Lock lock(driver_lock());
      if (!may_keep(address_of(target), width * height)) return;
    }
    for (size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(target) + row * target_pitch,
                   static_cast<const char*>(source) + row * source_pitch, width);
    }
  });
}

cudaError_t wait_for_stream(cudaError_t error, cudaStream_t stream) {
  return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t size, cudaMemcpyKind kind,
                                           cudaStream_t stream) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return result(cudaErrorInvalidMemcpyDirection);
  return result(copy_on_stream(target, source, size, stream));
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy(void* target, const void* source, size_t size, cudaMemcpyKind kind) {
  return wait_for_stream(cudaMemcpyAsync(target, source, size, kind, nullptr), nullptr);
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyPeerAsync(void* target, int target_device, const void* source, int source_device,
                                               size_t size, cudaStream_t stream) {
  if (device_of_ordinal(target_device) < 0 || device_of_ordinal(source_device) < 0)
    return result(cudaErrorInvalidDevice);
  return result(copy_on_stream(target, source, size, stream));
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyPeer(void* target, int target_device, const void* source, int source_device,
                                          size_t size) {
  return wait_for_stream(cudaMemcpyPeerAsync(target, target_device, source, source_device, size, nullptr), nullptr);
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                                             size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return result(copy_rows(target, target_pitch, source, source_pitch, width, height, stream));
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy2D(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                                        size_t width, size_t height, cudaMemcpyKind kind) {
  return wait_for_stream(cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, height, kind, nullptr),
                         nullptr);
}

SIMCUDA_EXPORT cudaError_t cudaMemsetAsync(void* target, int value, size_t size, cudaStream_t stream) {
  if (size > 0 && target == nullptr) return result(cudaErrorInvalidValue);
  return result(do_on_stream(stream, cudaGraphNodeTypeMemset, [=] { fill_now(target, value, size); }));
}

SIMCUDA_EXPORT cudaError_t cudaMemset(void* target, int value, size_t size) {
  return cudaMemsetAsync(target, value, size, nullptr);
}

// A device variable is represented by its shadow on the host, which stores data copied to the variable.
SIMCUDA_EXPORT cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  if (pointer == nullptr) return result(cudaErrorInvalidValue);
  if (symbol == nullptr) return result(cudaErrorInvalidSymbol);
  *pointer = const_cast<void*>(symbol);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t size, size_t offset,
                                              cudaMemcpyKind kind) {
  return cudaMemcpy(static_cast<char*>(const_cast<void*>(symbol)) + offset, source, size, kind);
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t size, size_t offset,
                                                   cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpyAsync(static_cast<char*>(const_cast<void*>(symbol)) + offset, source, size, kind, stream);
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyFromSymbol(void* target, const void* symbol, size_t size, size_t offset,
                                                cudaMemcpyKind kind) {
  return cudaMemcpy(target, static_cast<const char*>(symbol) + offset, size, kind);
}
