#include "autograd_context.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_function.h>

#include <atomic>
#include <string_view>
#include <typeinfo>

namespace alloctrace::torch_side {
namespace {

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// Compare by name: torch does not export the type_info of PyNode.
bool is_python_node(const std::type_info& type) {
  static std::atomic<const std::type_info*> python_node_type{nullptr};
  if (&type == python_node_type.load(std::memory_order_relaxed)) return true;
  if (std::string_view(type.name()) != "N5torch8autograd6PyNodeE") return false;
  python_node_type.store(&type, std::memory_order_relaxed);
  return true;
}

std::uint16_t cached_node_type_id(python::Session& session, python::ThreadContext& thread, const void* key,
                                  std::uint64_t hash, bool mangled, const char* name) {
  auto& entry = thread.node_types[(reinterpret_cast<std::uintptr_t>(key) >> 4) % thread.node_types.size()];
  if (entry.key != key || entry.text_hash != hash) entry = {key, hash, session.recorder.node_type_id({mangled, name})};
  return entry.id;
}

// Return the node's Python object or nullptr. Chosen by member, not release: builds without CUDA lack torch_release.h.
template <typename PyNode>
const PyObject* python_object_of(const PyNode& node) {
  // Test obj first: older releases also have an unrelated pyobj(), which returns null here.
  if constexpr (requires { node.obj; }) {
    return node.obj;
  } else {
    return node.pyobj();  // torch 2.13 and newer
  }
}

// Return the id of the node's type. Never calls name(): for a Python autograd.Function it takes the GIL, here under an
// allocator's lock. If another thread holds the GIL and waits for that lock, the program deadlocks.
std::uint16_t node_type_id(const torch::autograd::Node& node, python::Session& session, python::ThreadContext& thread) {
  const std::type_info& type = typeid(node);
  if (!is_python_node(type)) return cached_node_type_id(session, thread, &type, 0, true, type.name());
  // Reading the name needs no GIL: the node owns the object, the object its type, the type its name. A type created at
  // run time may be freed and its address reused, so the cache also compares the text.
  const PyObject* object = python_object_of(static_cast<const torch::autograd::PyNode&>(node));
  const char* name = object ? Py_TYPE(object)->tp_name : "PyNode";
  return cached_node_type_id(session, thread, name, hash_text(name), false, name);
}

// Not inlined: hooks outside of backward do not need this code.
[[gnu::noinline]] AutogradContext read_backward_context(python::Session& session, python::ThreadContext& thread) {
  AutogradContext context{.sequence = at::sequence_number::peek()};
  if (const auto node = torch::autograd::get_current_node()) {
    context.node_sequence = node->sequence_nr();
    context.node_thread = static_cast<std::uint32_t>(node->thread_id());
    context.node_type = node_type_id(*node, session, thread);
  }
  return context;
}

}  // namespace

std::uint64_t autograd_thread_id() noexcept { return at::RecordFunction::currentThreadId(); }

bool is_in_backward() noexcept { return torch::autograd::get_current_graph_task_id() != -1; }

AutogradContext read_autograd_context(python::Session& session, python::ThreadContext& thread) {
  // Nodes run within a graph task, whose id takes a third of the time to read.
  if (is_in_backward()) return read_backward_context(session, thread);
  return {.sequence = at::sequence_number::peek()};
}

}  // namespace alloctrace::torch_side
