// Stream capture: joining, invalidation, and the resulting graph.
#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_set>
#include <utility>

#include "device.h"
#include "graph_handles.h"
#include "graphs.h"
#include "streams.h"

namespace simcuda {
namespace {

std::vector<std::shared_ptr<Capture>>& ongoing() {
  static auto* const all = std::make_unique<std::vector<std::shared_ptr<Capture>>>().release();
  return *all;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Work of a joined stream that the origin does not wait for would be lost at replay.
bool has_unjoined_work(const Capture& capture) {
  std::unordered_set<const Node*> reached;
  std::vector<const Node*> open(capture.origin->capture_tail.begin(), capture.origin->capture_tail.end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return std::any_of(capture.streams.begin(), capture.streams.end(), [&](const StreamPointer& stream) {
    return std::any_of(stream->capture_tail.begin(), stream->capture_tail.end(),
                       [&](const Node* node) { return reached.count(node) == 0; });
  });
}

void end(const std::shared_ptr<Capture>& capture) {
  for (const StreamPointer& stream : capture->streams) {
    stream->capture.reset();
    stream->capture_tail.clear();
  }
  capture->streams.clear();
  ongoing().erase(std::remove(ongoing().begin(), ongoing().end(), capture), ongoing().end());
}

// The captures of blocking streams that work on the legacy stream would have to wait for.
std::vector<std::shared_ptr<Capture>> captures_that_wait_for(const StreamPointer& stream) {
  std::vector<std::shared_ptr<Capture>> found;
  if (!stream->legacy) return found;
  std::copy_if(ongoing().begin(), ongoing().end(), std::back_inserter(found), [&](const auto& capture) {
    return std::any_of(capture->streams.begin(), capture->streams.end(), [&](const StreamPointer& other) {
      return other->device == stream->device && other->blocking();
    });
  });
  return found;
}

cudaError_t begin(cudaStream_t handle, cudaStreamCaptureMode mode, std::shared_ptr<Graph> graph,
                  std::vector<Node*> dependencies) {
  static unsigned long long next_id = 1;
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->into_given_graph = graph != nullptr;
  capture->graph = graph != nullptr ? std::move(graph) : std::make_shared<Graph>();
  publish_graph(capture->graph);  // programs inspect it while it grows
  capture->origin = stream.get();
  capture->streams.push_back(stream);
  stream->capture = capture;
  stream->capture_tail = std::move(dependencies);
  ongoing().push_back(std::move(capture));
  return cudaSuccess;
}

}  // namespace

void invalidate(Capture& capture) { capture.invalidated = true; }

std::shared_ptr<Graph> abandon_capture(const std::shared_ptr<Capture>& capture) {
  end(capture);
  if (!capture->into_given_graph) withdraw_graph(capture->graph);
  return std::exchange(capture->graph, nullptr);
}

cudaError_t refuse_while_capturing() {
  if (ongoing().empty() || thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (const auto& capture : ongoing()) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool concerns_us =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!concerns_us) continue;
    invalidate(*capture);
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t refuse_implicit_dependency(const StreamPointer& stream) {
  const auto spoiled = captures_that_wait_for(stream);
  for (const auto& capture : spoiled) invalidate(*capture);
  return spoiled.empty() ? cudaSuccess : cudaErrorStreamCaptureImplicit;
}

bool device_is_capturing(int device) {
  bool capturing = false;
  for (const auto& capture : ongoing()) {
    for (const StreamPointer& stream : capture->streams) {
      if (stream->device != device) continue;
      invalidate(*capture);
      capturing = true;
    }
  }
  return capturing;
}

Node* capture_node(const StreamPointer& stream, std::shared_ptr<Node> node) {
  Graph& graph = *stream->capture->graph;
  node->graph = &graph;
  node->dependencies = stream->capture_tail;
  graph.nodes.push_back(node);
  stream->capture_tail = {node.get()};
  return node.get();
}

void keep_with_graph(const Capture& capture, std::shared_ptr<void> resource) {
  capture.graph->resources.push_back(std::move(resource));
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return result(begin(stream, mode, nullptr, {}));
}

SIMCUDA_EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t handle,
                                                         const cudaGraphNode_t* nodes, const cudaGraphEdgeData*,
                                                         size_t count, cudaStreamCaptureMode mode) {
  std::shared_ptr<Graph> graph;
  {
    const Lock lock(driver_lock());
    graph = find_graph(handle);
  }
  if (graph == nullptr) return result(cudaErrorInvalidValue);
  std::vector<Node*> dependencies;
  for (size_t index = 0; index < count; ++index) dependencies.push_back(reinterpret_cast<Node*>(nodes[index]));
  return result(begin(stream, mode, std::move(graph), std::move(dependencies)));
}

SIMCUDA_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  std::shared_ptr<Graph> captured;  // outlives the lock: an invalidated graph frees its resources without the lock
  const Lock lock(driver_lock());
  if (graph != nullptr) *graph = nullptr;
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return result(cudaErrorIllegalState);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return result(cudaErrorStreamCaptureWrongThread);
  }
  if (capture->origin != stream.get()) {
    invalidate(*capture);
    return result(cudaErrorStreamCaptureUnmatched);
  }
  cudaError_t error = cudaSuccess;
  if (capture->invalidated) {
    error = cudaErrorStreamCaptureInvalidated;
  } else if (has_unjoined_work(*capture)) {
    error = cudaErrorStreamCaptureUnjoined;
  }
  if (error != cudaSuccess) {
    captured = abandon_capture(capture);
    return result(error);
  }
  end(capture);
  captured = std::exchange(capture->graph, nullptr);
  if (graph != nullptr) *graph = handle_of(captured);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (status == nullptr) return result(cudaErrorInvalidValue);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *status = cudaStreamCaptureStatusNone;
  if (!captures_that_wait_for(stream).empty())
    return result(cudaErrorStreamCaptureImplicit);  // a query invalidates nothing
  if (stream->capture != nullptr) {
    *status = stream->capture->invalidated ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  }
  return cudaSuccess;
}

static cudaError_t capture_info(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                const cudaGraphEdgeData** edges, size_t* count) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (status == nullptr) return result(cudaErrorInvalidValue);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (!captures_that_wait_for(stream).empty()) return result(cudaErrorStreamCaptureImplicit);
  *status = cudaStreamCaptureStatusNone;
  if (edges != nullptr) *edges = nullptr;
  if (stream->capture == nullptr) return cudaSuccess;
  if (stream->capture->invalidated) {
    *status = cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  }
  *status = cudaStreamCaptureStatusActive;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = handle_of(stream->capture->graph);
  if (dependencies != nullptr) *dependencies = reinterpret_cast<const cudaGraphNode_t*>(stream->capture_tail.data());
  if (count != nullptr) *count = stream->capture_tail.size();
  return cudaSuccess;
}

static cudaError_t update_dependencies(cudaStream_t handle, cudaGraphNode_t* nodes, size_t count, unsigned flags) {
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture == nullptr) return result(cudaErrorIllegalState);
  if (stream->capture->invalidated) return result(cudaErrorStreamCaptureInvalidated);
  if (flags == cudaStreamSetCaptureDependencies) stream->capture_tail.clear();
  for (size_t index = 0; index < count; ++index) stream->capture_tail.push_back(reinterpret_cast<Node*>(nodes[index]));
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
SIMCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                                    unsigned long long* id, cudaGraph_t* graph,
                                                    const cudaGraphNode_t** dependencies,
                                                    const cudaGraphEdgeData** edges, size_t* count) {
  return capture_info(handle, status, id, graph, dependencies, edges, count);
}
SIMCUDA_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes,
                                                               const cudaGraphEdgeData*, size_t count, unsigned flags) {
  return update_dependencies(handle, nodes, count, flags);
}
#else
SIMCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                                    unsigned long long* id, cudaGraph_t* graph,
                                                    const cudaGraphNode_t** dependencies, size_t* count) {
  return capture_info(handle, status, id, graph, dependencies, nullptr, count);
}
SIMCUDA_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes,
                                                               size_t count, unsigned flags) {
  return update_dependencies(handle, nodes, count, flags);
}
#endif

SIMCUDA_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed) {
    return result(cudaErrorInvalidValue);
  }
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
