// Memory of a device that other processes take.
#pragma once

#include <vector>

#include "simcuda.h"

namespace simcuda {

struct OtherProcess {
  unsigned pid;
  uint64_t bytes;
};
// SIMCUDA_OTHER_PROCESSES, as far as they use this device.
std::vector<OtherProcess> other_processes(int device);

}  // namespace simcuda
