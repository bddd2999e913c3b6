// What device memory holds. No kernel runs, so it is what was copied in, or zeros. Lock held.
#pragma once

#include <cstdint>

namespace simcuda {

// Whether this much may be written there: copies beyond the limits keep nothing, so that a large model does not fill
// the host.
bool may_keep(uint64_t address, uint64_t size);

// A single number that the program reads is mostly one that kernels computed: a sum, or how many elements there are.
// The memory under it may still hold what was copied to an earlier tenant, which as a count would be absurd. So a
// number is what was copied in only as long as no kernel was launched since; then it is zero.
constexpr uint64_t kNumber = 8;
void note_written(uint64_t address, uint64_t size);
void note_launch();
bool written_since_launch(uint64_t address, uint64_t size);

}  // namespace simcuda
