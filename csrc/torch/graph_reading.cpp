#include "graph_reading.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace alloctrace::torch_side {
namespace {

namespace autograd = torch::autograd;
namespace py = pybind11;

// Access to the lock of a node. Never waits: the thread that has the lock may be waiting for the GIL.
struct NodeLock : autograd::Node {
  static std::unique_lock<std::mutex> try_lock(autograd::Node& node) {
    return {node.*&NodeLock::mutex_, std::try_to_lock};
  }
};

// Scope without garbage collection, which could run the program's code and release the GIL (before Python 3.12).
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

bool code_mentions(const py::object& code, const char* name) {
  return contains(code.attr("co_names"), name) || contains(code.attr("co_consts"), name);
}

// Return whether the frame's thread may be freeing a gradient or tensors of a Python-written node. Runs no audit hook.
bool may_change_graphs(py::object frame, bool is_own) {
  while (frame) {
    auto* const this_frame = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(this_frame)));
    if (code_mentions(code, "run_backward") || (!is_own && code_mentions(code, "grad"))) return true;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(this_frame)));
  }
  return false;
}

// Check all threads. The result is valid while the caller keeps the GIL. Call without locks: an audit hook may run.
bool any_thread_may_change_graphs() {
  const py::dict frames = py::handle(PySys_GetObject("_current_frames"))();
  const py::int_ own(PyThread_get_thread_ident());
  return std::any_of(frames.begin(), frames.end(), [&own](const auto& entry) {
    return may_change_graphs(py::reinterpret_borrow<py::object>(entry.second), entry.first.equal(own));
  });
}

// Locks under which backward writes a gradient.
class GradientLocks {
 public:
  explicit GradientLocks(autograd::AutogradMeta& meta) : of_tensor_(meta.mutex_, std::try_to_lock) {
    if (!of_tensor_) return;
    accumulator_ = meta.grad_accumulator_.lock();
    if (accumulator_ != nullptr) of_accumulator_ = NodeLock::try_lock(*accumulator_);
  }

  explicit operator bool() const { return of_tensor_ && (accumulator_ == nullptr || of_accumulator_); }

 private:
  // A shared pointer, from torch 2.13 on an intrusive one. Destroyed after the locks are released.
  decltype(std::declval<autograd::AutogradMeta&>().grad_accumulator_.lock()) accumulator_;
  std::unique_lock<std::mutex> of_tensor_;
  std::unique_lock<std::mutex> of_accumulator_;
};

void add_referent(py::list& referents, py::handle value, py::handle saved_type) {
  if (py::type::handle_of(value).is(saved_type)) {
    if (!value.attr("unpack_hook").is_none()) return;
    const py::object data = value.attr("data");
    if (!data.is_none()) referents.append(data);
  } else if (!value.is_none()) {
    referents.append(value);
  }
}

}  // namespace

std::optional<py::list> graph_referents(py::handle node, const py::tuple& getters, py::handle saved_type) {
  const CollectorPause paused;
  py::list referents;
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
        add_referent(referents, value, saved_type);
        continue;
      }
      for (const py::handle element : value) {
        const bool is_edge = PyTuple_CheckExact(element.ptr());  // (node, input number)
        add_referent(referents, is_edge ? py::handle(PyTuple_GET_ITEM(element.ptr(), 0)) : element, saved_type);
      }
    } catch (const py::error_already_set& error) {
      // Raised for a tensor that backward has freed.
      if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_AttributeError)) throw;
    }
  }
  return referents;
}

std::optional<py::list> gradient_of(py::handle tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("only tensors have gradients");
  const CollectorPause paused;
  py::list referents;
  autograd::AutogradMeta* const meta = autograd::impl::get_autograd_meta(THPVariable_Unpack(tensor.ptr()));
  if (meta == nullptr) return referents;
  {
    const GradientLocks locks(*meta);
    if (!locks) return std::nullopt;
    if (!meta->grad_.defined()) return referents;
  }
  if (any_thread_may_change_graphs()) return std::nullopt;
  const GradientLocks locks(*meta);
  if (!locks) return std::nullopt;
  if (!meta->grad_.defined()) return referents;
  const auto gradient = py::reinterpret_steal<py::object>(THPVariable_Wrap(meta->grad_));
  if (!gradient) throw py::error_already_set();
  referents.append(gradient);
  return referents;
}

}  // namespace alloctrace::torch_side
