// Rows of structs as numpy columns, and a progress callback that may be called without the GIL.
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

// Calls back into Python while the work runs without the GIL; also where Ctrl-C gets through. Not each time: where
// another thread computes in Python, the GIL comes only after its turn, 5 ms later.
inline Progress with_gil(const py::object& callback) {
  using Clock = std::chrono::steady_clock;
  return [callback, next = Clock::time_point{}](double share) mutable {
    constexpr auto kBetween = std::chrono::milliseconds(50);
    const Clock::time_point now = Clock::now();
    if (now < next) return;
    next = now + kBetween;
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

// One column of a run of structs, in the type that it has here.
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

// One column of numbers: sequence numbers, sizes, times, ids. Signed, since unsigned ones wrap where pandas subtracts
// them; a number that only a damaged trace can hold becomes the largest.
template <typename Rows, typename Get>
py::array_t<std::int64_t> integers(const Rows& rows, Get get) {
  return column<std::int64_t>(rows, [&](const auto& row) { return clamped(get(row)); });
}

// One column of addresses. Signed as all other numbers, so that they may be added and joined in pandas and Parquet; the
// bits stay as they are.
template <typename Rows, typename Get>
py::array_t<std::int64_t> addresses(const Rows& rows, Get get) {
  return column<std::int64_t>(rows, get);
}

}  // namespace alloctrace
