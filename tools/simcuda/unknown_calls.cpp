// Implementation of the stubs that unknown_calls.py writes.
#include <cstring>

#include "simcuda.h"

namespace simcuda {

long unknown_call(const char* name, int error) {
  report_unknown_call(name);
  // cudaGetLastError reports the runtime's errors, too.
  if (std::strncmp(name, "cuda", 4) == 0) result(static_cast<cudaError_t>(error));
  return error;
}

}  // namespace simcuda
