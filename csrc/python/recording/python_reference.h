#pragma once

#include <Python.h>

#include <utility>

namespace alloctrace::python {

// Owned reference to a Python object; created and destroyed with the GIL.
class Reference {
 public:
  Reference() = default;
  explicit Reference(PyObject* owned) : object_(owned) {}
  template <typename Object>
  explicit Reference(Object* owned) : object_(reinterpret_cast<PyObject*>(owned)) {}
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  PyObject* get() const { return object_; }
  template <typename Object>
  Object* as() const {
    return reinterpret_cast<Object*>(object_);
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace alloctrace::python
