// What device memory contains: no kernel runs, so what was copied in, or zeros. Lock held.
#pragma once

#include <cstdint>

namespace simcuda {

// Whether this much may be written there: copies beyond the limits keep nothing, so that a large model does not fill
// the host.
bool may_keep(uint64_t address, uint64_t size);

// A single number that the program reads was mostly computed by kernels: a sum, or a count of elements. The memory
// under it may still hold what was copied into an earlier allocation there, which would be absurd as a count. So a
// number is what was copied in only while no kernel has been launched since; after that it is zero.
constexpr uint64_t kNumber = 8;
void note_written(uint64_t address, uint64_t size);
void note_launch();
bool written_since_launch(uint64_t address, uint64_t size);

}  // namespace simcuda
