// Devices: contexts, accounting, and which device the calling thread works on.
#pragma once

#include "simcuda.h"

namespace simcuda {

// The runtime's number of a device: its index among the visible devices. -1 if there is no such device.
int device_of_ordinal(int ordinal);
int ordinal_of_device(int device);

// Makes the calling thread's device ready for work: creates its context at first use. Takes the lock itself.
cudaError_t use_current_device();
cudaError_t use_device(int device);

// Adds the bytes to the device's use; returns false if they exceed its capacity. Lock held.
bool charge(int device, uint64_t bytes);
void discharge(int device, uint64_t bytes);
uint64_t free_memory(int device);

bool has_context(int device);  // takes the lock itself

void set_current_device(int device);

}  // namespace simcuda
