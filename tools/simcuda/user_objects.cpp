// User objects: objects that a program attaches to a graph, which destroys them.
#include <map>
#include <memory>

#include "graph_handles.h"
#include "graphs.h"

namespace simcuda {
namespace {

// References are counted explicitly, since the program moves them; each reference of a graph is one of its resources.
struct UserObject {
  void* object;
  cudaHostFn_t destroy;
  unsigned long long references;
};

std::map<cudaUserObject_t, std::unique_ptr<UserObject>>& user_objects() {
  static auto* const all = std::make_unique<std::map<cudaUserObject_t, std::unique_ptr<UserObject>>>().release();
  return *all;
}

// Runs the program's function, so without the lock.
cudaError_t drop(cudaUserObject_t handle, unsigned long long count) {
  std::unique_ptr<UserObject> last;
  {
    const Lock lock(driver_lock());
    const auto found = user_objects().find(handle);
    if (found == user_objects().end() || found->second->references < count) return cudaErrorInvalidValue;
    found->second->references -= count;
    if (found->second->references > 0) return cudaSuccess;
    last = std::move(found->second);
    user_objects().erase(found);
  }
  last->destroy(last->object);
  return cudaSuccess;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* handle, void* object, cudaHostFn_t destroy,
                                                unsigned references, unsigned flags) {
  if (handle == nullptr || destroy == nullptr || references == 0 || flags != cudaUserObjectNoDestructorSync) {
    return result(cudaErrorInvalidValue);
  }
  const Lock lock(driver_lock());
  auto created = std::make_unique<UserObject>(UserObject{object, destroy, references});
  *handle = reinterpret_cast<cudaUserObject_t>(created.get());
  user_objects()[*handle] = std::move(created);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
  const Lock lock(driver_lock());
  const auto found = user_objects().find(handle);
  if (found == user_objects().end()) return result(cudaErrorInvalidValue);
  found->second->references += count;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
  return result(drop(handle, count));
}

SIMCUDA_EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle, unsigned count,
                                                     unsigned flags) {
  const Lock lock(driver_lock());
  const auto graph = find_graph(graph_handle);
  const auto found = user_objects().find(handle);
  if (graph == nullptr || found == user_objects().end()) return result(cudaErrorInvalidValue);
  if ((flags & cudaGraphUserObjectMove) == 0) found->second->references += count;
  graph->resources.push_back(std::shared_ptr<void>(nullptr, [handle, count](void*) { drop(handle, count); }));
  return cudaSuccess;
}
