// torch's table of allocators by device type.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace alloctrace::torch_side {

// torch takes an allocator only at the priority of the present one or above, and does not tell that priority. The
// lowest that is taken leaves the program's own later calls as free as before.
inline void put_in_slot(c10::DeviceType device, c10::Allocator* allocator) {
  for (int priority = 0; priority <= 255; ++priority) {
    c10::SetAllocator(device, allocator, static_cast<std::uint8_t>(priority));
    if (c10::GetAllocator(device) == allocator) return;
  }
}

}  // namespace alloctrace::torch_side
