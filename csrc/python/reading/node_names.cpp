#include "node_names.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace alloctrace {
namespace {

// A part of a mangled name may stand for what came before it ("S_", "T0_"), and so double its length: a few hundred
// bytes could become gigabytes. Types of nodes have few of these.
bool is_short_when_read(const std::string& name) {
  constexpr std::size_t kLongest = 1024, kMostReferences = 8;
  if (name.size() > kLongest) return false;
  std::size_t references = 0;
  for (std::size_t at = 0; at < name.size(); ++at) {
    if (name[at] != 'S' && name[at] != 'T') continue;
    const std::size_t end = name.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", at + 1);
    if (end != std::string::npos && name[end] == '_') ++references;
  }
  return references <= kMostReferences;
}

}  // namespace

std::string readable_node_type(const NodeType& type) {
  if (!type.mangled || !is_short_when_read(type.name)) return type.name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name.c_str(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name;
}

}  // namespace alloctrace
