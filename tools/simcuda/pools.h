// Memory pools of cudaMallocAsync, as seen by other parts. Lock held.
#pragma once

namespace simcuda {

// After a synchronisation: pools release memory beyond their release threshold.
void trim_pools(int device);
// When the device is out of memory.
void trim_pools_to_nothing(int device);

}  // namespace simcuda
