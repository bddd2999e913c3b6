// Reader for pickles of dict, list, tuple, str, bytes, int, float, bool and None, the only types in torch's snapshots.
//
// Safe for any input. A subclass of pickle.Unpickler that forbids find_class and persistent_load would not be safe. A
// pickle can make the subclass allocate any amount of memory (a memo index of 2^31 in five bytes, texts of claimed
// gigabytes), overflow the stack (hashing deeply nested tuples as a dictionary key), change objects by BUILD, and find
// classes by extension codes that another module registered. This reader has no opcode that names, calls or sets up
// objects, accepts only texts and numbers as keys, and counts memory before allocating it.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

class PlainPickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr std::size_t kMaxPickleMarks = 1000;  // maximum nesting; snapshots have seven levels
constexpr std::size_t kMaxPickleText = std::size_t{16} << 20;
// Memory limit in bytes: snapshots need about eight bytes per byte of the file.
constexpr std::uint64_t kMemoryPerByte = 24, kMinPickleMemory = std::uint64_t{64} << 20;
// Upper bounds of the bytes that values take, with their reference.
constexpr std::uint64_t kReference = 8, kNumber = 40, kText = 80, kList = 96, kTuple = 64, kDict = 96, kItem = 64;

class PlainPickle {
 public:
  explicit PlainPickle(std::string_view data)
      : at_(data.data()), end_(at_ + data.size()), memory_left_(kMinPickleMemory + kMemoryPerByte * data.size()) {}

  py::object load() {
    for (;;) {
      const auto opcode = static_cast<unsigned char>(read_bytes(1)[0]);
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) throw PlainPickleError("it does not contain exactly one value");
    return stack_.back();
  }

 private:
  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const std::uint64_t protocol = read_number(1);
        if (protocol > 5) throw PlainPickleError("it has the unsupported pickle protocol " + std::to_string(protocol));
        return;
      }
      case 0x95:  // FRAME: length of the next part, not needed
        read_number(8);
        return;
      case 'N':
        return push(py::none(), 0);
      case 0x88:
        return push(py::bool_(true), 0);
      case 0x89:
        return push(py::bool_(false), 0);
      case 'K':
        return push_integer(static_cast<std::int64_t>(read_number(1)));
      case 'M':
        return push_integer(static_cast<std::int64_t>(read_number(2)));
      case 'J':
        return push_integer(static_cast<std::int32_t>(read_number(4)));
      case 0x8a:
        return push_long(read_number(1));
      case 0x8b:
        return push_long(read_number(4));
      case 'I':
      case 'L':
        return push_decimal(read_line(), opcode == 'I');
      case 'G': {
        const std::string_view bytes = read_bytes(8);
        std::uint64_t bits = 0;
        for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
        double value = 0;
        std::memcpy(&value, &bits, sizeof value);
        return push(py::float_(value), kNumber);
      }
      case 'F': {
        const std::string text(read_line());
        char* rest = nullptr;
        const double value = std::strtod(text.c_str(), &rest);
        if (text.empty() || *rest != '\0') throw PlainPickleError("it contains an invalid number");
        return push(py::float_(value), kNumber);
      }
      case 0x8c:
        return push_text(read_number(1));
      case 'X':
        return push_text(read_number(4));
      case 0x8d:
        return push_text(read_number(8));
      case 'C':
        return push_bytes(read_number(1));
      case 'B':
        return push_bytes(read_number(4));
      case 0x8e:
        return push_bytes(read_number(8));
      case ']':
        return push(py::list(), kList);
      case '}':
        return push(py::dict(), kDict);
      case ')':
        return push(py::tuple(), 0);
      case '(':
        if (marks_.size() == kMaxPickleMarks) throw PlainPickleError("its values are nested too deeply");
        marks_.push_back(stack_.size());
        return;
      case 'l': {
        const std::size_t first = pop_mark();
        charge_memory(kList);
        py::list list;
        append(list, first);
        return push(std::move(list), 0);
      }
      case 'd': {
        const std::size_t first = pop_mark();
        charge_memory(kDict);
        py::dict dict;
        set_items(dict, first);
        return push(std::move(dict), 0);
      }
      case 't':
        return push_tuple(pop_mark());
      case 0x85:
      case 0x86:
      case 0x87: {
        const std::size_t items = opcode - 0x84u;
        return push_tuple(stack_.size() - require_values(items));
      }
      case 'a': {
        const std::size_t first = stack_.size() - require_values(2) + 1;
        return append(list_below(first), first);
      }
      case 'e': {
        const std::size_t first = pop_mark();
        return append(list_below(first), first);
      }
      case 's': {
        const std::size_t first = stack_.size() - require_values(3) + 1;
        return set_items(dict_below(first), first);
      }
      case 'u': {
        const std::size_t first = pop_mark();
        return set_items(dict_below(first), first);
      }
      case '0':
        require_values(1);
        stack_.pop_back();
        return;
      case '1': {
        const std::size_t first = pop_mark();
        stack_.resize(first);
        return;
      }
      case '2':
        require_values(1);
        return push(stack_.back(), 0);
      case 0x94:
        return memoize(memo_.size());
      case 'q':
        return memoize(read_number(1));
      case 'r':
        return memoize(read_number(4));
      case 'p':
        return memoize(decimal_index());
      case 'h':
        return push_memo(read_number(1));
      case 'j':
        return push_memo(read_number(4));
      case 'g':
        return push_memo(decimal_index());
      default:
        throw PlainPickleError("it contains more than plain values (opcode " + std::to_string(opcode) + ")");
    }
  }

  std::string_view read_bytes(std::uint64_t size) {
    if (size > static_cast<std::uint64_t>(end_ - at_)) throw PlainPickleError("it is truncated");
    const std::string_view result(at_, static_cast<std::size_t>(size));
    at_ += size;
    return result;
  }

  // Read a little-endian number.
  std::uint64_t read_number(std::size_t bytes) {
    const std::string_view digits = read_bytes(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }

  std::string_view read_line() {
    const void* const newline = std::memchr(at_, '\n', static_cast<std::size_t>(end_ - at_));
    if (!newline) throw PlainPickleError("it is truncated");
    const std::string_view text = read_bytes(static_cast<std::uint64_t>(static_cast<const char*>(newline) - at_));
    read_bytes(1);
    return text;
  }

  void charge_memory(std::uint64_t bytes) {
    if (bytes > memory_left_) throw PlainPickleError("its values need far more memory than a snapshot's");
    memory_left_ -= bytes;
  }

  void push(py::object value, std::uint64_t bytes) {
    charge_memory(bytes + kReference);
    stack_.push_back(std::move(value));
  }

  void push_integer(std::int64_t value) { push(py::int_(value), kNumber); }

  // Push a signed little-endian number of `size` bytes.
  void push_long(std::uint64_t size) {
    const std::string_view bytes = read_bytes(size);
    if (size > 9) throw PlainPickleError("it contains a number of more than 64 bits");
    if (size == 9) {
      if (bytes[8] != 0) throw PlainPickleError("it contains a number of more than 64 bits");
      at_ -= 9;
      const std::uint64_t value = read_number(8);
      read_bytes(1);
      return push(py::int_(value), kNumber);
    }
    std::uint64_t value = size > 0 && static_cast<signed char>(bytes.back()) < 0 ? UINT64_MAX : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    push_integer(static_cast<std::int64_t>(value));
  }

  void push_decimal(std::string_view text, bool may_be_bool) {
    if (may_be_bool && (text == "00" || text == "01")) return push(py::bool_(text == "01"), 0);
    if (!text.empty() && text.back() == 'L') text.remove_suffix(1);
    if (!text.empty() && text.front() != '-') return push(py::int_(decimal<std::uint64_t>(text)), kNumber);
    push_integer(decimal<std::int64_t>(text));
  }

  template <typename Number>
  static Number decimal(std::string_view text) {
    Number value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || rest != text.data() + text.size() || text.empty()) {
      throw PlainPickleError("it contains an invalid number, or one of more than 64 bits");
    }
    return value;
  }

  std::uint64_t decimal_index() { return decimal<std::uint64_t>(read_line()); }

  std::string_view read_text(std::uint64_t size) {
    if (size > kMaxPickleText) throw PlainPickleError("it contains a text of more than 16 MiB");
    return read_bytes(size);
  }

  void push_text(std::uint64_t size) {
    const std::string_view bytes = read_text(size);
    const bool is_ascii =
        std::all_of(bytes.begin(), bytes.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
    charge_memory(is_ascii ? size : 4 * size);
    PyObject* const text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogatepass");
    if (!text) {
      PyErr_Clear();
      throw PlainPickleError("it contains a text that is not UTF-8");
    }
    push(py::reinterpret_steal<py::object>(text), kText);
  }

  void push_bytes(std::uint64_t size) {
    const std::string_view bytes = read_text(size);
    charge_memory(size);
    push(py::bytes(bytes.data(), bytes.size()), kText);
  }

  // Throw if fewer values are above the last mark; return `values`.
  std::size_t require_values(std::size_t values) const {
    const std::size_t available = stack_.size() - (marks_.empty() ? 0 : marks_.back());
    if (available < values) throw PlainPickleError("it lacks a value");
    return values;
  }

  // Remove the last mark and return the index of the first value above it.
  std::size_t pop_mark() {
    if (marks_.empty()) throw PlainPickleError("it lacks a mark");
    const std::size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  void push_tuple(std::size_t first) {
    charge_memory(kTuple + kReference * (stack_.size() - first));
    py::tuple tuple(stack_.size() - first);
    for (std::size_t i = first; i < stack_.size(); ++i) tuple[i - first] = stack_[i];
    stack_.resize(first);
    push(std::move(tuple), 0);
  }

  // Return the value below index `first`: the container of the values above.
  py::object& container_below(std::size_t first) {
    if (first == 0 || (!marks_.empty() && first - 1 < marks_.back())) {
      throw PlainPickleError("it lacks a list or dictionary");
    }
    return stack_[first - 1];
  }

  py::list list_below(std::size_t first) {
    py::object& container = container_below(first);
    if (!PyList_CheckExact(container.ptr())) throw PlainPickleError("it appends to a non-list");
    return py::reinterpret_borrow<py::list>(container);
  }

  py::dict dict_below(std::size_t first) {
    py::object& container = container_below(first);
    if (!PyDict_CheckExact(container.ptr())) throw PlainPickleError("it sets an item of a non-dictionary");
    return py::reinterpret_borrow<py::dict>(container);
  }

  void append(const py::list& list, std::size_t first) {
    charge_memory(2 * kReference * (stack_.size() - first));
    for (std::size_t i = first; i < stack_.size(); ++i) {
      if (PyList_Append(list.ptr(), stack_[i].ptr()) != 0) throw py::error_already_set();
    }
    stack_.resize(first);
  }

  void set_items(const py::dict& dict, std::size_t first) {
    const std::size_t values = stack_.size() - first;
    if (values % 2 != 0) throw PlainPickleError("it contains a key without a value");
    charge_memory(kItem * values / 2);
    for (std::size_t i = first; i < stack_.size(); i += 2) {
      PyObject* const key = stack_[i].ptr();
      if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) {
        throw PlainPickleError("it contains a key that is neither text nor number");
      }
      if (PyDict_SetItem(dict.ptr(), key, stack_[i + 1].ptr()) != 0) throw py::error_already_set();
    }
    stack_.resize(first);
  }

  // Store the top value. Writers number memo entries consecutively: a larger index must not allocate a huge memo.
  void memoize(std::uint64_t index) {
    require_values(1);
    if (index > memo_.size()) throw PlainPickleError("its memo indexes are not consecutive");
    if (index < memo_.size()) {
      memo_[static_cast<std::size_t>(index)] = stack_.back();
      return;
    }
    charge_memory(kReference);
    memo_.push_back(stack_.back());
  }

  void push_memo(std::uint64_t index) {
    if (index >= memo_.size()) throw PlainPickleError("it lacks a value");
    push(memo_[static_cast<std::size_t>(index)], 0);
  }

  const char* at_;
  const char* end_;
  std::uint64_t memory_left_;
  std::vector<py::object> stack_, memo_;
  std::vector<std::size_t> marks_;
};

}  // namespace

void define_plain_pickle(py::module_& module) {
  define_trace_error<PlainPickleError>(module, "PlainPickleError");
  module.def(
      "load_plain_pickle", [](const py::bytes& data) { return PlainPickle(std::string_view(data)).load(); },
      py::arg("data"));
}

}  // namespace alloctrace
