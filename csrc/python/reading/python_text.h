// Python str from the text of a trace.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace alloctrace {

// Decode UTF-8. Invalid bytes are replaced: file names need not be UTF-8, and corrupt traces contain any bytes.
inline pybind11::str text(const std::string& bytes) {
  return pybind11::reinterpret_steal<pybind11::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// Return a getter of a text member, for def_property_readonly.
template <typename Record>
auto text_of(std::string Record::* member) {
  return [member](const Record& record) { return text(record.*member); };
}

}  // namespace alloctrace
