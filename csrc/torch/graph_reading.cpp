#include "graph_reading.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

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

// Keeps Python from collecting garbage during a read. Before Python 3.12, an allocation may start a collection, which
// may run code of the program and give the GIL to other threads.
class CollectorPause {
 public:
  ~CollectorPause() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  const bool was_enabled_ = PyGC_Disable() != 0;
};

bool contains(const py::tuple& values, const char* name) {
  return std::any_of(values.begin(), values.end(), [name](py::handle value) {
    return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), name) == 0;
  });
}

bool mentions(const py::object& code, const char* name) {
  return contains(code.attr("co_names"), name) || contains(code.attr("co_consts"), name);
}

// Return whether the thread of the frame may be freeing a gradient, or what a node written in Python saved. Reads only
// what runs no audit hooks.
bool may_change_graphs(py::object frame, bool is_own) {
  while (frame) {
    auto* const this_frame = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(this_frame)));
    if (mentions(code, "run_backward") || (!is_own && mentions(code, "grad"))) return true;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(this_frame)));
  }
  return false;
}

// The answer holds while the caller keeps the GIL. Call without locks: an audit hook may run before frames are read.
bool any_thread_may_change_graphs() {
  const py::dict frames = py::handle(PySys_GetObject("_current_frames"))();
  const py::int_ own(PyThread_get_thread_ident());
  return std::any_of(frames.begin(), frames.end(), [&own](const auto& entry) {
    return may_change_graphs(py::reinterpret_borrow<py::object>(entry.second), entry.first.equal(own));
  });
}

// The locks under which backward writes a gradient.
class GradientLocks {
 public:
  explicit GradientLocks(autograd::AutogradMeta& meta) : of_tensor_(meta.mutex_, std::try_to_lock) {
    if (!of_tensor_) return;
    accumulator_ = meta.grad_accumulator_.lock();
    if (accumulator_ != nullptr) of_accumulator_ = NodeLock::try_lock(*accumulator_);
  }

  explicit operator bool() const { return of_tensor_ && (accumulator_ == nullptr || of_accumulator_); }

 private:
  std::shared_ptr<autograd::Node> accumulator_;  // destroyed after the locks are released
  std::unique_lock<std::mutex> of_tensor_;
  std::unique_lock<std::mutex> of_accumulator_;
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

std::optional<py::list> graph_referents(py::handle node, const py::tuple& getters, py::handle saved_type) {
  const CollectorPause paused;
  py::list found;
  std::unique_lock<std::mutex> lock;
  if (autograd::THPCppFunction_Check(node.ptr())) {
    lock = NodeLock::try_lock(*reinterpret_cast<autograd::THPCppFunction*>(node.ptr())->cdata);
    if (!lock) return std::nullopt;
  } else if (any_thread_may_change_graphs()) {
    return std::nullopt;
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

std::optional<py::list> gradient_of(py::handle tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("only tensors have gradients");
  const CollectorPause paused;
  py::list found;
  autograd::AutogradMeta* const meta = autograd::impl::get_autograd_meta(THPVariable_Unpack(tensor.ptr()));
  if (meta == nullptr) return found;
  {
    const GradientLocks locks(*meta);
    if (!locks) return std::nullopt;
    if (!meta->grad_.defined()) return found;
  }
  if (any_thread_may_change_graphs()) return std::nullopt;
  const GradientLocks locks(*meta);
  if (!locks) return std::nullopt;
  if (!meta->grad_.defined()) return found;
  const auto gradient = py::reinterpret_steal<py::object>(THPVariable_Wrap(meta->grad_));
  if (!gradient) throw py::error_already_set();
  found.append(gradient);
  return found;
}

}  // namespace alloctrace::torch_side
