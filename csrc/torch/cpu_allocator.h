// Tracing of torch's CPU allocators: of the default one in place, of one that the program set by an allocator in front.
#pragma once

namespace alloctrace::torch_side {

// Begin to record allocations. Memory that no allocator of torch provides is not recorded: numpy's, memory maps, shared
// memory.
void install_cpu_allocator();
// Restore the former state. Tensors can be freed at any later time.
void remove_cpu_allocator();
// Return whether storages that torch's Python bindings allocate (copy.deepcopy, UntypedStorage(n), resize_ of an older
// tensor) are recorded, which the default allocator's class decides.
bool records_python_storages();

}  // namespace alloctrace::torch_side
