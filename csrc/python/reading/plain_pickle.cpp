// A reader for pickles of dict, list, tuple, str, bytes, int, float, bool and None, which is all that snapshots of
// torch consist of; written so that any bytes may be given to it.
//
// Why not a subclass of pickle.Unpickler whose find_class and persistent_load raise: a pickle can make that one take
// any amount of memory (a memo index of 2^31 in five bytes, texts that claim to be gigabytes), overflow the stack (a
// tuple in a tuple in ... as the key of a dictionary is hashed by recursion), change objects by BUILD, and find classes
// without find_class where another module has registered extension codes. Here an opcode that names, calls or sets up
// anything does not exist; keys are texts and small numbers; and what the values take is counted before it is taken.
#include "plain_pickle.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace py = pybind11;

namespace alloctrace {
namespace {

class PlainPickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Snapshots nest seven deep.
constexpr std::size_t kDeepestMarks = 1000;
constexpr std::size_t kLongestText = std::size_t{16} << 20;
// Snapshots take about eight bytes for each of their file.
constexpr std::uint64_t kMemoryPerByte = 24, kMemoryAtLeast = std::uint64_t{64} << 20;
// What values take, rounded up, with their reference.
constexpr std::uint64_t kReference = 8, kNumber = 40, kText = 80, kList = 96, kTuple = 64, kDict = 96, kItem = 64;

class PlainPickle {
 public:
  explicit PlainPickle(std::string_view data)
      : at_(data.data()), end_(at_ + data.size()), left_(kMemoryAtLeast + kMemoryPerByte * data.size()) {}

  py::object load() {
    for (;;) {
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) throw PlainPickleError("it ends with more or less than one value");
    return stack_.back();
  }

 private:
  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const std::uint64_t protocol = number(1);
        if (protocol > 5) throw PlainPickleError("it is of protocol " + std::to_string(protocol));
        return;
      }
      case 0x95:  // FRAME: how the bytes are to be read, which are all here
        number(8);
        return;
      case 'N':
        return push(py::none(), 0);
      case 0x88:
        return push(py::bool_(true), 0);
      case 0x89:
        return push(py::bool_(false), 0);
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1)));
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));
      case 0x8a:
        return push_long(number(1));
      case 0x8b:
        return push_long(number(4));
      case 'I':
      case 'L':
        return push_decimal(line(), opcode == 'I');
      case 'G': {
        const std::string_view bytes = take(8);
        std::uint64_t bits = 0;
        for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
        double value = 0;
        std::memcpy(&value, &bits, sizeof value);
        return push(py::float_(value), kNumber);
      }
      case 'F': {
        const std::string text(line());
        char* rest = nullptr;
        const double value = std::strtod(text.c_str(), &rest);
        if (text.empty() || *rest != '\0') throw PlainPickleError("a number in it is none");
        return push(py::float_(value), kNumber);
      }
      case 0x8c:
        return push_text(number(1));
      case 'X':
        return push_text(number(4));
      case 0x8d:
        return push_text(number(8));
      case 'C':
        return push_bytes(number(1));
      case 'B':
        return push_bytes(number(4));
      case 0x8e:
        return push_bytes(number(8));
      case ']':
        return push(py::list(), kList);
      case '}':
        return push(py::dict(), kDict);
      case ')':
        return push(py::tuple(), 0);
      case '(':
        if (marks_.size() == kDeepestMarks) throw PlainPickleError("it nests too deep");
        marks_.push_back(stack_.size());
        return;
      case 'l': {
        const std::size_t first = mark();
        spend(kList);
        py::list made;
        append(made, first);
        return push(std::move(made), 0);
      }
      case 'd': {
        const std::size_t first = mark();
        spend(kDict);
        py::dict made;
        set_items(made, first);
        return push(std::move(made), 0);
      }
      case 't':
        return push_tuple(mark());
      case 0x85:
      case 0x86:
      case 0x87: {
        const std::size_t items = opcode - 0x84u;
        return push_tuple(stack_.size() - need(items));
      }
      case 'a': {
        const std::size_t first = stack_.size() - need(2) + 1;
        return append(list_below(first), first);
      }
      case 'e': {
        const std::size_t first = mark();
        return append(list_below(first), first);
      }
      case 's': {
        const std::size_t first = stack_.size() - need(3) + 1;
        return set_items(dict_below(first), first);
      }
      case 'u': {
        const std::size_t first = mark();
        return set_items(dict_below(first), first);
      }
      case '0':
        need(1);
        stack_.pop_back();
        return;
      case '1': {
        const std::size_t first = mark();
        stack_.resize(first);
        return;
      }
      case '2':
        need(1);
        return push(stack_.back(), 0);
      case 0x94:
        return remember(memo_.size());
      case 'q':
        return remember(number(1));
      case 'r':
        return remember(number(4));
      case 'p':
        return remember(decimal_index());
      case 'h':
        return recall(number(1));
      case 'j':
        return recall(number(4));
      case 'g':
        return recall(decimal_index());
      default:
        throw PlainPickleError("it has more than plain values (opcode " + std::to_string(opcode) + ")");
    }
  }

  std::string_view take(std::uint64_t size) {
    if (size > static_cast<std::uint64_t>(end_ - at_)) throw PlainPickleError("it ends in the middle");
    const std::string_view taken(at_, static_cast<std::size_t>(size));
    at_ += size;
    return taken;
  }

  // Little-endian.
  std::uint64_t number(std::size_t bytes) {
    const std::string_view taken = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }

  std::string_view line() {
    const void* const found = std::memchr(at_, '\n', static_cast<std::size_t>(end_ - at_));
    if (!found) throw PlainPickleError("it ends in the middle");
    const std::string_view text = take(static_cast<std::uint64_t>(static_cast<const char*>(found) - at_));
    take(1);
    return text;
  }

  void spend(std::uint64_t bytes) {
    if (bytes > left_) throw PlainPickleError("its values would take far more memory than those of a snapshot do");
    left_ -= bytes;
  }

  void push(py::object value, std::uint64_t bytes) {
    spend(bytes + kReference);
    stack_.push_back(std::move(value));
  }

  void push_integer(std::int64_t value) { push(py::int_(value), kNumber); }

  // A signed number of so many bytes, little-endian.
  void push_long(std::uint64_t size) {
    const std::string_view bytes = take(size);
    if (size > 9) throw PlainPickleError("a number in it has more than 64 bits");
    if (size == 9) {
      if (bytes[8] != 0) throw PlainPickleError("a number in it has more than 64 bits");
      at_ -= 9;
      const std::uint64_t value = number(8);
      take(1);
      return push(py::int_(value), kNumber);
    }
    std::uint64_t value = size > 0 && static_cast<signed char>(bytes.back()) < 0 ? UINT64_MAX : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    push_integer(static_cast<std::int64_t>(value));
  }

  void push_decimal(std::string_view text, bool has_bools) {
    if (has_bools && (text == "00" || text == "01")) return push(py::bool_(text == "01"), 0);
    if (!text.empty() && text.back() == 'L') text.remove_suffix(1);
    if (!text.empty() && text.front() != '-') return push(py::int_(decimal<std::uint64_t>(text)), kNumber);
    push_integer(decimal<std::int64_t>(text));
  }

  template <typename Number>
  static Number decimal(std::string_view text) {
    Number value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || rest != text.data() + text.size() || text.empty()) {
      throw PlainPickleError("a number in it is none, or has more than 64 bits");
    }
    return value;
  }

  std::uint64_t decimal_index() { return decimal<std::uint64_t>(line()); }

  std::string_view take_text(std::uint64_t size) {
    if (size > kLongestText) throw PlainPickleError("a text in it is longer than 16 MiB");
    return take(size);
  }

  void push_text(std::uint64_t size) {
    const std::string_view bytes = take_text(size);
    const bool is_ascii =
        std::all_of(bytes.begin(), bytes.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
    spend(is_ascii ? size : 4 * size);
    PyObject* const text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogatepass");
    if (!text) {
      PyErr_Clear();
      throw PlainPickleError("a text in it is not UTF-8");
    }
    push(py::reinterpret_steal<py::object>(text), kText);
  }

  void push_bytes(std::uint64_t size) {
    const std::string_view bytes = take_text(size);
    spend(size);
    push(py::bytes(bytes.data(), bytes.size()), kText);
  }

  // How many values there are to be above the last mark; returns the same number.
  std::size_t need(std::size_t values) const {
    const std::size_t there = stack_.size() - (marks_.empty() ? 0 : marks_.back());
    if (there < values) throw PlainPickleError("a value is missing in it");
    return values;
  }

  // Takes the last mark away; returns where the values above it begin.
  std::size_t mark() {
    if (marks_.empty()) throw PlainPickleError("a mark is missing in it");
    const std::size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  void push_tuple(std::size_t first) {
    spend(kTuple + kReference * (stack_.size() - first));
    py::tuple made(stack_.size() - first);
    for (std::size_t i = first; i < stack_.size(); ++i) made[i - first] = stack_[i];
    stack_.resize(first);
    push(std::move(made), 0);
  }

  // What is below the first of the values that are put into it.
  py::object& below(std::size_t first) {
    if (first == 0 || (!marks_.empty() && first - 1 < marks_.back())) {
      throw PlainPickleError("a list or dictionary is missing in it");
    }
    return stack_[first - 1];
  }

  py::list list_below(std::size_t first) {
    py::object& found = below(first);
    if (!PyList_CheckExact(found.ptr())) throw PlainPickleError("something is appended in it to what is no list");
    return py::reinterpret_borrow<py::list>(found);
  }

  py::dict dict_below(std::size_t first) {
    py::object& found = below(first);
    if (!PyDict_CheckExact(found.ptr())) throw PlainPickleError("an item is put in it into what is no dictionary");
    return py::reinterpret_borrow<py::dict>(found);
  }

  void append(const py::list& list, std::size_t first) {
    spend(2 * kReference * (stack_.size() - first));
    for (std::size_t i = first; i < stack_.size(); ++i) {
      if (PyList_Append(list.ptr(), stack_[i].ptr()) != 0) throw py::error_already_set();
    }
    stack_.resize(first);
  }

  void set_items(const py::dict& dict, std::size_t first) {
    const std::size_t values = stack_.size() - first;
    if (values % 2 != 0) throw PlainPickleError("a key in it has no value");
    spend(kItem * values / 2);
    for (std::size_t i = first; i < stack_.size(); i += 2) {
      PyObject* const key = stack_[i].ptr();
      if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) {
        throw PlainPickleError("a key in it is neither a text nor a number");
      }
      if (PyDict_SetItem(dict.ptr(), key, stack_[i + 1].ptr()) != 0) throw py::error_already_set();
    }
    stack_.resize(first);
  }

  // Whatever writes pickles numbers what it remembers one after the other.
  void remember(std::uint64_t index) {
    need(1);
    if (index > memo_.size()) throw PlainPickleError("it remembers values by numbers that are too high");
    if (index < memo_.size()) {
      memo_[static_cast<std::size_t>(index)] = stack_.back();
      return;
    }
    spend(kReference);
    memo_.push_back(stack_.back());
  }

  void recall(std::uint64_t index) {
    if (index >= memo_.size()) throw PlainPickleError("a value is missing in it");
    push(memo_[static_cast<std::size_t>(index)], 0);
  }

  const char* at_;
  const char* end_;
  std::uint64_t left_;
  std::vector<py::object> stack_, memo_;
  std::vector<std::size_t> marks_;
};

}  // namespace

void define_plain_pickle(py::module_& module) {
  const py::object trace_error = py::module_::import("pytorch_alloctrace.errors").attr("TraceError");
  py::register_exception<PlainPickleError>(module, "PlainPickleError", trace_error);
  module.def(
      "load_plain_pickle", [](const py::bytes& data) { return PlainPickle(std::string_view(data)).load(); },
      py::arg("data"));
}

}  // namespace alloctrace
