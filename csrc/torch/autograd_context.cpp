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

std::uint64_t text_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// torch does not export this type's type_info, so it is known by its name.
bool is_python_node(const std::type_info& type) {
  static std::atomic<const std::type_info*> known{nullptr};
  if (&type == known.load(std::memory_order_relaxed)) return true;
  if (std::string_view(type.name()) != "N5torch8autograd6PyNodeE") return false;
  known.store(&type, std::memory_order_relaxed);
  return true;
}

std::uint16_t cached_id(python::Session& session, python::ThreadContext& thread, const void* key, std::uint64_t hash,
                        bool mangled, const char* name) {
  auto& entry = thread.node_types[(reinterpret_cast<std::uintptr_t>(key) >> 4) % thread.node_types.size()];
  if (entry.key != key || entry.text_hash != hash) entry = {key, hash, session.recorder.node_type_id({mangled, name})};
  return entry.id;
}

// The Python object of a node, or null. Chosen by the member, not by the release: this file is also compiled without
// CUDA, where torch_release.h cannot be included.
template <typename PyNode>
const PyObject* object_of(const PyNode& node) {
  // In this order: older releases have a pyobj() too, which is another thing, and null here.
  if constexpr (requires { node.obj; }) {
    return node.obj;
  } else {
    return node.pyobj();  // torch 2.13 and newer
  }
}

// The node's type, never its name(): for a Python autograd.Function that takes the GIL, under an allocator's lock, and
// a second thread that holds the GIL and waits for that lock then hangs the program.
std::uint16_t node_type_id(const torch::autograd::Node& node, python::Session& session, python::ThreadContext& thread) {
  const std::type_info& type = typeid(node);
  if (!is_python_node(type)) return cached_id(session, thread, &type, 0, true, type.name());
  // The type's name can be read without the GIL: the node owns the object, the object its type, the type its name.
  // Types made at run time die and leave their address to others, so here the text is compared too.
  const PyObject* object = object_of(static_cast<const torch::autograd::PyNode&>(node));
  const char* name = object ? Py_TYPE(object)->tp_name : "PyNode";
  return cached_id(session, thread, name, text_hash(name), false, name);
}

// Of its own: outside of backward the hooks need none of its code.
[[gnu::noinline]] AutogradPoint point_in_backward(python::Session& session, python::ThreadContext& thread) {
  AutogradPoint point{.sequence = at::sequence_number::peek()};
  if (const auto node = torch::autograd::get_current_node()) {
    point.node_sequence = node->sequence_nr();
    point.node_thread = static_cast<std::uint32_t>(node->thread_id());
    point.node_type = node_type_id(*node, session, thread);
  }
  return point;
}

}  // namespace

std::uint64_t autograd_thread_id() noexcept { return at::RecordFunction::currentThreadId(); }

AutogradPoint autograd_point(python::Session& session, python::ThreadContext& thread) {
  // The engine evaluates a node as a part of a graph task, whose number is a third of the work to get.
  if (torch::autograd::get_current_graph_task_id() != -1) return point_in_backward(session, thread);
  return {.sequence = at::sequence_number::peek()};
}

}  // namespace alloctrace::torch_side
