// Graphs by the handles that programs hold. Lock held.
#pragma once

#include "graphs.h"

namespace simcuda {

inline cudaGraph_t handle_of(const std::shared_ptr<Graph>& graph) { return reinterpret_cast<cudaGraph_t>(graph.get()); }
std::shared_ptr<Graph> find_graph(cudaGraph_t handle);
cudaGraph_t publish_graph(const std::shared_ptr<Graph>& graph);
void withdraw_graph(const std::shared_ptr<Graph>& graph);

}  // namespace simcuda
