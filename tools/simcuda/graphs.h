// Graphs: nodes with dependencies, created by capture.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "streams.h"

namespace simcuda {

struct Node {
  Graph* graph = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::vector<Node*> dependencies;
  std::function<void()> copy;  // at each replay, at once
  std::function<void()> host;  // at each replay, in the stream's order
  EventPointer event;          // event record and event wait nodes
  cudaKernelNodeParams kernel{};
};

struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;  // in the order of creation, so dependencies come first
  std::vector<std::shared_ptr<void>>
      resources;  // freed, without the lock, when the graph and everything created from it are gone
};

struct GraphExecutable {
  std::vector<std::shared_ptr<Node>> nodes;
  std::vector<std::shared_ptr<void>> resources;
};

// Makes the graph own a resource, such as memory allocated during its capture.
void keep_with_graph(const Capture& capture, std::shared_ptr<void> resource);

}  // namespace simcuda
