// Content of device memory: no kernel runs, so copied data or zeros. Lock held.
#pragma once

#include <cstdint>

namespace simcuda {

// True if this many bytes may be written there: copies beyond the limits store nothing, so that a large model does not
// fill the host.
bool may_keep(uint64_t address, uint64_t size);

// A single number that the program reads is usually computed by a kernel: a sum, or a count of elements. Its memory may
// still contain data of an earlier allocation, which would be absurd as a count. So a number has the copied value only
// until the next kernel launch, and is zero afterwards.
constexpr uint64_t kNumber = 8;
void note_written(uint64_t address, uint64_t size);
void note_launch();
bool written_since_launch(uint64_t address, uint64_t size);

}  // namespace simcuda
