// Allocated addresses and their content. Lock held.
#pragma once

#include "simcuda.h"

namespace simcuda {

struct Allocation {
  enum class Kind { kDevice, kPool, kMapped, kHost, kRegistered, kManaged };
  Kind kind;
  uint64_t address;
  uint64_t size;      // requested
  uint64_t reserved;  // taken from the device
  int device;
  unsigned flags = 0;
  uint64_t content = 0;  // upper bound of the copied bytes
  unsigned long long id = 0;

  bool on_device() const { return kind == Kind::kDevice || kind == Kind::kPool || kind == Kind::kMapped; }
};

Allocation* find_allocation(uint64_t address);  // contains the address; null: none
void add_allocation(Allocation allocation);
void remove_allocation(uint64_t address);
void forget_content(const Allocation& allocation);  // when it is freed (content.cpp)

// Physical memory at a fresh address of the device, and back. 0: out of memory.
uint64_t allocate_pages(int device, uint64_t size);
void free_pages(int device, uint64_t address, uint64_t size);

// cudaFree of a pool's allocation.
void free_from_pool(uint64_t address);

void log_out_of_memory(int device, uint64_t size);

inline uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }
inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace simcuda
