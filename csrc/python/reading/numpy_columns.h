// Rows of structs as numpy columns, and a progress callback that may be called without the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace alloctrace {

namespace py = pybind11;

using Progress = std::function<void(double)>;

// Calls back into Python while the work runs without the GIL; also the place where Ctrl-C gets through.
inline Progress with_gil(const py::object& callback) {
  return [callback](double share) {
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!callback.is_none()) callback(share);
  };
}

template <typename T>
py::array_t<T> to_array(std::vector<T>&& values) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  const T* data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  const py::capsule keep(owner.release(),
                         [](void* held) { std::unique_ptr<std::vector<T>>(static_cast<std::vector<T>*>(held)); });
  return py::array_t<T>(size, data, keep);
}

// One column of a run of structs.
template <typename T, typename Row, typename Get>
py::array_t<T> column(const std::vector<Row>& rows, Get get) {
  std::vector<T> values(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) values[i] = static_cast<T>(get(rows[i]));
  return to_array(std::move(values));
}

}  // namespace alloctrace
