#include "graph_reading.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>

namespace alloctrace::torch_side {
namespace {

namespace autograd = torch::autograd;
namespace py = pybind11;

// Never waits: the thread that has the lock may be waiting for the GIL.
struct NodeLock : autograd::Node {
  static std::unique_lock<std::mutex> try_lock(autograd::Node& node) {
    return {node.*&NodeLock::mutex_, std::try_to_lock};
  }
};

void add(py::list& found, py::handle value, py::handle saved_type) {
  if (py::type::handle_of(value).is(saved_type)) {
    if (!value.attr("unpack_hook").is_none()) return;
    const py::object data = value.attr("data");
    if (!data.is_none()) found.append(data);
  } else if (!value.is_none()) {
    found.append(value);
  }
}

}  // namespace

py::list graph_referents(py::handle node, const py::tuple& getters, py::handle saved_type) {
  py::list found;
  std::unique_lock<std::mutex> lock;
  // A node that is written in Python changes with the GIL only.
  if (autograd::THPCppFunction_Check(node.ptr())) {
    lock = NodeLock::try_lock(*reinterpret_cast<autograd::THPCppFunction*>(node.ptr())->cdata);
    if (!lock) return found;
  }
  for (const py::handle getter : getters) {
    try {
      const py::object value = getter(node);
      if (!PyTuple_CheckExact(value.ptr()) && !PyList_CheckExact(value.ptr())) {
        add(found, value, saved_type);
        continue;
      }
      for (const py::handle one : value) {
        const bool is_edge = PyTuple_CheckExact(one.ptr());  // the node, and the number of its input
        add(found, is_edge ? py::handle(PyTuple_GET_ITEM(one.ptr(), 0)) : one, saved_type);
      }
    } catch (const py::error_already_set& error) {
      // Raised for a tensor that backward has released.
      if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_AttributeError)) throw;
    }
  }
  return found;
}

py::object gradient_of_leaf(py::handle tensor) {
  autograd::AutogradMeta* const meta = autograd::impl::get_autograd_meta(THPVariable_Unpack(tensor.ptr()));
  if (meta == nullptr) return py::none();
  std::shared_ptr<autograd::Node> accumulator;  // destroyed after the locks are released
  const std::unique_lock<std::mutex> lock(meta->mutex_, std::try_to_lock);
  if (!lock) return py::none();
  accumulator = meta->grad_accumulator_.lock();
  std::unique_lock<std::mutex> node_lock;
  if (accumulator != nullptr) {
    node_lock = NodeLock::try_lock(*accumulator);
    if (!node_lock) return py::none();
  }
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(meta->grad_));
}

}  // namespace alloctrace::torch_side
