// Memory of a device that other processes use.
#pragma once

#include <vector>

#include "simcuda.h"

namespace simcuda {

struct OtherProcess {
  unsigned pid;
  uint64_t bytes;
};
// The processes of SIMCUDA_OTHER_PROCESSES that use this device.
std::vector<OtherProcess> other_processes(int device);

}  // namespace simcuda
