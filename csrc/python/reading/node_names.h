// Demangled names of autograd nodes.
#pragma once

#include <string>

#include "../../core/format/definitions.h"

namespace alloctrace {

std::string readable_node_type(const NodeType& type);

}  // namespace alloctrace
