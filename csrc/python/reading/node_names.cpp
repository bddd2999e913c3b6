#include "node_names.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace alloctrace {
namespace {

// Return whether demangling cannot exhaust memory: each back reference ("S_", "T0_") may double the length, so a few
// hundred bytes of a corrupt trace could become gigabytes. Node types have few references.
bool is_short_when_demangled(const std::string& name) {
  constexpr std::size_t kMaxLength = 1024, kMaxReferences = 8;
  if (name.size() > kMaxLength) return false;
  std::size_t references = 0;
  for (std::size_t at = 0; at < name.size(); ++at) {
    if (name[at] != 'S' && name[at] != 'T') continue;
    const std::size_t end = name.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", at + 1);
    if (end != std::string::npos && name[end] == '_') ++references;
  }
  return references <= kMaxReferences;
}

}  // namespace

std::string readable_node_type(const NodeType& type) {
  if (!type.mangled || !is_short_when_demangled(type.name)) return type.name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name.c_str(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name;
}

}  // namespace alloctrace
