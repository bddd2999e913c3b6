#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "../../core/writing/trace_writer.h"
#include "bindings.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

// Encode lone surrogates, as in file names that are not UTF-8, with backslashes instead of raising an exception.
std::string encode_utf8(const py::str& text) {
  const py::object bytes = text.attr("encode")("utf-8", "backslashreplace");
  return bytes.cast<std::string>();
}

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Push events from columns of equal length; fields: core/format/event_fields.h.
void push(TraceWriter& writer, const Column<std::uint8_t>& kind, const Column<std::uint64_t>& time,
          const Column<std::uint64_t>& address, const Column<std::uint64_t>& size, const Column<std::uint32_t>& stack,
          const Column<std::uint32_t>& thread, const Column<std::uint32_t>& location,
          const Column<std::uint64_t>& sequence, const Column<std::uint64_t>& node_sequence,
          const std::optional<Column<std::uint16_t>>& node_type) {
  const py::ssize_t count = kind.size();
  for (const py::array* const column :
       {static_cast<const py::array*>(&time), static_cast<const py::array*>(&address),
        static_cast<const py::array*>(&size), static_cast<const py::array*>(&stack),
        static_cast<const py::array*>(&thread), static_cast<const py::array*>(&location),
        static_cast<const py::array*>(&sequence), static_cast<const py::array*>(&node_sequence),
        static_cast<const py::array*>(node_type ? &*node_type : nullptr)}) {
    if (column == nullptr) continue;
    if (column->ndim() != 1 || column->size() != count) throw py::value_error("columns differ in length");
  }
  for (py::ssize_t i = 0; i < count; ++i) {
    Event event{};
    event.kind = static_cast<EventKind>(kind.data()[i]);
    event.time = time.data()[i];
    event.address = address.data()[i];
    event.size = size.data()[i];
    event.stack = stack.data()[i];
    event.thread = thread.data()[i];
    event.location = location.data()[i];
    event.sequence = sequence.data()[i];
    event.node_sequence = node_sequence.data()[i];
    if (node_type) event.node_type = node_type->data()[i];
    writer.push(event);
  }
}

}  // namespace

void define_trace_writing(py::module_& module) {
  define_trace_error<TraceFileError>(module, "TraceFileError");
  py::class_<TraceWriter>(module, "TraceWriter")
      .def(py::init<const std::string&, bool, std::uint64_t, std::string>(), py::arg("path"), py::arg("overwrite"),
           py::arg("begin_ns"), py::arg("header_json"))
      .def("string", [](TraceWriter& writer, const py::str& text) { return writer.string(encode_utf8(text)); })
      .def("thread", [](TraceWriter& writer, const py::str& name) { return writer.thread(encode_utf8(name)); })
      .def("node_type", [](TraceWriter& writer, const py::str& name) { return writer.node_type(encode_utf8(name)); })
      .def("library_block", [](TraceWriter& writer, std::uint64_t event, std::uint64_t address,
                               const py::str& name) { writer.library_block(event, address, encode_utf8(name)); })
      .def("code",
           [](TraceWriter& writer, const py::str& name, const py::str& filename, std::int32_t first_line,
              const py::bytes& line_table) {
             // Without a table, all instructions are on the first line.
             const std::string table(line_table);
             const LineTableKind kind = table.empty() ? LineTableKind::kNone : LineTableKind::kPython310;
             return writer.code(encode_utf8(name), encode_utf8(filename), first_line, kind, table);
           })
      .def("frame", [](TraceWriter& writer, std::uint32_t parent, std::uint32_t code,
                       std::uint32_t instruction) { return writer.frame({parent, code, instruction}); })
      .def("location",
           [](TraceWriter& writer, std::int32_t type, std::int32_t index, std::uint64_t stream,
              const std::pair<std::uint64_t, std::uint64_t>& pool) {
             return writer.location({type, index, stream, pool.first, pool.second});
           })
      .def("push", &push, py::arg("kind"), py::arg("time"), py::arg("address"), py::arg("size"), py::arg("stack"),
           py::arg("thread"), py::arg("location"), py::arg("sequence"), py::arg("node_sequence"),
           py::arg("node_type") = py::none())
      .def("finish", &TraceWriter::finish, py::arg("end_json"));
}

}  // namespace alloctrace
