// Graphs: instantiated, launched, inspected, destroyed.
#include "graphs.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unordered_map>

#include "content.h"
#include "device.h"
#include "graph_handles.h"

namespace simcuda {
namespace {

struct Handles {
  std::unordered_map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
  std::unordered_map<cudaGraphExec_t, std::shared_ptr<GraphExecutable>> executables;
};

Handles& handles() {
  static auto* const all = std::make_unique<Handles>().release();
  return *all;
}

Node* node_of(cudaGraphNode_t handle) { return reinterpret_cast<Node*>(handle); }
cudaGraphNode_t handle_of(Node* node) { return reinterpret_cast<cudaGraphNode_t>(node); }

// The calling convention of all list queries: without an array they return only the count, with an array as many
// entries as fit, padded with null.
cudaError_t give_nodes(const std::vector<Node*>& found, cudaGraphNode_t* nodes, size_t* count) {
  if (count == nullptr) return cudaErrorInvalidValue;
  if (nodes == nullptr) {
    *count = found.size();
    return cudaSuccess;
  }
  for (size_t index = 0; index < *count; ++index)
    nodes[index] = index < found.size() ? handle_of(found[index]) : nullptr;
  *count = std::min(*count, found.size());
  return cudaSuccess;
}

const char* type_name(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "KERNEL";
    case cudaGraphNodeTypeMemcpy:
      return "MEMCPY";
    case cudaGraphNodeTypeMemset:
      return "MEMSET";
    case cudaGraphNodeTypeHost:
      return "HOST";
    case cudaGraphNodeTypeEventRecord:
      return "EVENT_RECORD";
    case cudaGraphNodeTypeWaitEvent:
      return "EVENT_WAIT";
    case cudaGraphNodeTypeMemAlloc:
      return "MEM_ALLOC";
    case cudaGraphNodeTypeMemFree:
      return "MEM_FREE";
    default:
      return "EMPTY";
  }
}

cudaError_t instantiate(cudaGraphExec_t* handle, cudaGraph_t graph_handle) {
  if (handle == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  const Lock lock(driver_lock());
  const auto graph = find_graph(graph_handle);
  if (graph == nullptr) return cudaErrorInvalidValue;
  auto executable = std::make_shared<GraphExecutable>(GraphExecutable{graph->nodes, graph->resources});
  *handle = reinterpret_cast<cudaGraphExec_t>(executable.get());
  handles().executables[*handle] = std::move(executable);
  return cudaSuccess;
}

// Launched during a capture: the nodes are added to the other graph one by one, in the order of the stream.
void capture_launch(const StreamPointer& stream, const GraphExecutable& executable) {
  for (const auto& node : executable.nodes) capture_node(stream, std::make_shared<Node>(*node));
  for (const auto& resource : executable.resources) keep_with_graph(*stream->capture, resource);
}

void replay_node(const StreamPointer& stream, const Node& node) {
  using Kind = Operation::Kind;
  if (node.host) {
    enqueue(stream, {Kind::kHostFunction, nullptr, node.host});
  } else if (node.type == cudaGraphNodeTypeEventRecord) {
    node.event->captured = false;
    node.event->recording = record_end(stream);
  } else if (node.type == cudaGraphNodeTypeWaitEvent) {
    if (node.event->recording != nullptr) enqueue(stream, {Kind::kWait, node.event->recording, {}});
  } else {
    enqueue(stream, {});
  }
}

}  // namespace

std::shared_ptr<Graph> find_graph(cudaGraph_t handle) {
  const auto found = handles().graphs.find(handle);
  return found == handles().graphs.end() ? nullptr : found->second;
}

cudaGraph_t publish_graph(const std::shared_ptr<Graph>& graph) {
  handles().graphs[handle_of(graph)] = graph;
  return handle_of(graph);
}

void withdraw_graph(const std::shared_ptr<Graph>& graph) { handles().graphs.erase(handle_of(graph)); }

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* handle, unsigned flags) {
  if (handle == nullptr || flags != 0) return result(cudaErrorInvalidValue);
  const Lock lock(driver_lock());
  *handle = publish_graph(std::make_shared<Graph>());
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* handle, cudaGraph_t graph,
                                                         unsigned long long) {
  return result(instantiate(handle, graph));
}

SIMCUDA_EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* handle, cudaGraph_t graph, unsigned long long) {
  return result(instantiate(handle, graph));
}

SIMCUDA_EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* handle, cudaGraph_t graph,
                                                          cudaGraphInstantiateParams* parameters) {
  const cudaError_t error = instantiate(handle, graph);
  parameters->result_out = error == cudaSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
  return result(error);
}

SIMCUDA_EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t) {
  const Lock lock(driver_lock());
  return result(handles().executables.count(handle) > 0 ? cudaSuccess : cudaErrorInvalidValue);
}

SIMCUDA_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  std::shared_ptr<GraphExecutable> executable;
  {
    const Lock lock(driver_lock());
    const auto found = handles().executables.find(handle);
    const StreamPointer stream = find_stream(stream_handle);
    if (found == handles().executables.end()) return result(cudaErrorInvalidValue);
    if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return result(error);
    executable = found->second;
    if (stream->capture != nullptr) {
      if (stream->capture->invalidated) return result(cudaErrorStreamCaptureInvalidated);
      capture_launch(stream, *executable);
      return cudaSuccess;
    }
    note_launch();
    for (const auto& node : executable->nodes) replay_node(stream, *node);
  }
  for (const auto& node : executable->nodes) {
    if (node->copy) node->copy();
  }
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  std::shared_ptr<Graph> last;  // its resources are freed after the lock is released
  const Lock lock(driver_lock());
  last = find_graph(handle);
  return result(handles().graphs.erase(handle) > 0 ? cudaSuccess : cudaErrorInvalidValue);
}

SIMCUDA_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  std::shared_ptr<GraphExecutable> last;
  const Lock lock(driver_lock());
  const auto found = handles().executables.find(handle);
  if (found == handles().executables.end()) return result(cudaErrorInvalidValue);
  last = found->second;
  handles().executables.erase(found);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  const Lock lock(driver_lock());
  const auto graph = find_graph(handle);
  if (graph == nullptr) return result(cudaErrorInvalidValue);
  std::vector<Node*> found;
  for (const auto& node : graph->nodes) found.push_back(node.get());
  return result(give_nodes(found, nodes, count));
}

SIMCUDA_EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  const Lock lock(driver_lock());
  const auto graph = find_graph(handle);
  if (graph == nullptr) return result(cudaErrorInvalidValue);
  std::vector<Node*> found;
  for (const auto& node : graph->nodes) {
    if (node->dependencies.empty()) found.push_back(node.get());
  }
  return result(give_nodes(found, nodes, count));
}

static cudaError_t dependencies_of(cudaGraphNode_t handle, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges,
                                   size_t* count) {
  const Lock lock(driver_lock());
  if (handle == nullptr) return result(cudaErrorInvalidValue);
  const cudaError_t error = give_nodes(node_of(handle)->dependencies, nodes, count);
  if (error == cudaSuccess && nodes != nullptr && edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
  return result(error);
}

static cudaError_t dependents_of(cudaGraphNode_t handle, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges,
                                 size_t* count) {
  const Lock lock(driver_lock());
  if (handle == nullptr) return result(cudaErrorInvalidValue);
  std::vector<Node*> found;
  for (const auto& node : node_of(handle)->graph->nodes) {
    const auto& needed = node->dependencies;
    if (std::find(needed.begin(), needed.end(), node_of(handle)) != needed.end()) found.push_back(node.get());
  }
  const cudaError_t error = give_nodes(found, nodes, count);
  if (error == cudaSuccess && nodes != nullptr && edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
  return result(error);
}

#if CUDART_VERSION >= 13000
SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* nodes,
                                                        cudaGraphEdgeData* edges, size_t* count) {
  return dependencies_of(handle, nodes, edges, count);
}
SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t handle, cudaGraphNode_t* nodes,
                                                          cudaGraphEdgeData* edges, size_t* count) {
  return dependents_of(handle, nodes, edges, count);
}
#else
SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* nodes, size_t* count) {
  return dependencies_of(handle, nodes, nullptr, count);
}
SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t handle, cudaGraphNode_t* nodes,
                                                          size_t* count) {
  return dependents_of(handle, nodes, nullptr, count);
}
#endif

SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, cudaGraphNodeType* type) {
  if (handle == nullptr || type == nullptr) return result(cudaErrorInvalidValue);
  *type = node_of(handle)->type;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t handle, cudaKernelNodeParams* parameters) {
  if (handle == nullptr || parameters == nullptr || node_of(handle)->type != cudaGraphNodeTypeKernel) {
    return result(cudaErrorInvalidValue);
  }
  *parameters = node_of(handle)->kernel;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t handle, const char* path, unsigned) {
  const Lock lock(driver_lock());
  const auto graph = find_graph(handle);
  if (graph == nullptr || path == nullptr) return result(cudaErrorInvalidValue);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "w"), &std::fclose);
  if (file == nullptr) return result(cudaErrorOperatingSystem);
  std::fprintf(file.get(), "digraph dot {\n");
  for (const auto& node : graph->nodes) {
    std::fprintf(file.get(), "  \"%p\" [label=\"%s\"];\n", static_cast<void*>(node.get()), type_name(node->type));
    for (Node* needed : node->dependencies) {
      std::fprintf(file.get(), "  \"%p\" -> \"%p\";\n", static_cast<void*>(needed), static_cast<void*>(node.get()));
    }
  }
  std::fprintf(file.get(), "}\n");
  return cudaSuccess;
}
