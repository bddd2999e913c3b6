// Errors of a trace that cannot be read. The message is a sentence for the user.
#pragma once

#include <stdexcept>

namespace alloctrace {

// The file is not a trace, or has a newer format.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The file cannot be opened, or changed while it was read.
class OpenError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace alloctrace
