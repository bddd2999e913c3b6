// Errors of a trace that cannot be read. The message is a sentence for the user.
#pragma once

#include <stdexcept>
#include <string>

namespace alloctrace {

// The file is not a trace, has a newer format, or has a compacted part that is invalid or of another version.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
inline FormatError not_a_trace(const std::string& path) {
  return FormatError(path + " is not an alloctrace trace, or its beginning is corrupt");
}
// The file cannot be opened, or changed while it was read.
class OpenError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace alloctrace
