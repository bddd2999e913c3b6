// Numpy columns from rows of structs, and a progress callback for code without the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace alloctrace {

namespace py = pybind11;

using Progress = std::function<void(double)>;

// Return a function that takes the GIL, handles Ctrl-C and calls `callback`, at most every 50 ms: while another thread
// runs Python code, each wait for the GIL takes 5 ms.
inline Progress with_gil(const py::object& callback) {
  using Clock = std::chrono::steady_clock;
  return [callback, next = Clock::time_point{}](double share) mutable {
    constexpr auto kInterval = std::chrono::milliseconds(50);
    const Clock::time_point now = Clock::now();
    if (now < next) return;
    next = now + kInterval;
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
  const py::capsule base(owner.release(),
                         [](void* pointer) { std::unique_ptr<std::vector<T>>(static_cast<std::vector<T>*>(pointer)); });
  return py::array_t<T>(size, data, base);
}

template <typename T, typename Rows, typename Get>
py::array_t<T> column(const Rows& rows, Get get) {
  py::array_t<T> values(static_cast<py::ssize_t>(rows.size()));
  T* const begin = values.mutable_data();
  for (std::size_t i = 0; i < rows.size(); ++i) begin[i] = static_cast<T>(get(rows[i]));
  return values;
}

template <typename Integer>
std::int64_t clamped(Integer value) {
  return std::cmp_greater(value, INT64_MAX) ? INT64_MAX : static_cast<std::int64_t>(value);
}

// Return one column of numbers, signed because pandas wraps unsigned differences; clamps numbers of corrupt traces.
template <typename Rows, typename Get>
py::array_t<std::int64_t> integers(const Rows& rows, Get get) {
  return column<std::int64_t>(rows, [&](const auto& row) { return clamped(get(row)); });
}

// Return one column of addresses with unchanged bits, signed so that pandas and Parquet can add and join columns.
template <typename Rows, typename Get>
py::array_t<std::int64_t> addresses(const Rows& rows, Get get) {
  return column<std::int64_t>(rows, get);
}

}  // namespace alloctrace
