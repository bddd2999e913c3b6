// Asks torch's allocators directly, from C++ and from threads that Python does not know, for
// tests/recording/test_allocator_contract.py: called through ctypes.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#ifdef WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

c10::Allocator* allocator_of(const char* name) {
#ifdef WITH_CUDA
  // c10's table does not have the allocators that programs register.
  if (std::string(name) == "cuda") return c10::cuda::CUDACachingAllocator::get();
#endif
  if (std::string(name) == "pinned") return at::getHostAllocator(c10::DeviceType::CUDA);
  return c10::GetAllocator(c10::DeviceType::CPU);
}

}  // namespace

// What a block says of itself, a bit each: its address is its context; the allocator calls it simple; its deleter is
// the allocator's raw_deleter(); that is null.
extern "C" int properties_of_a_block(const char* name, std::size_t size) {
  c10::Allocator* const allocator = allocator_of(name);
  const c10::DataPtr data = allocator->allocate(size);
  const c10::DeleterFnPtr raw = allocator->raw_deleter();
  return (data.get() == data.get_context()) | allocator->is_simple_data_ptr(data) << 1 |
         (data.get_deleter() == raw) << 2 | (raw == nullptr) << 3;
}

// Only for allocators whose blocks are their own contexts.
extern "C" void* allocate_raw(const char* name, std::size_t size) { return allocator_of(name)->raw_allocate(size); }
extern "C" void free_raw(const char* name, void* address) { allocator_of(name)->raw_deallocate(address); }

// For a clone of a block: 1 when it has the block's bytes (of device memory: when there is one), 0 when not, -1 when
// this allocator cannot clone.
extern "C" int clone_has_the_bytes(const char* name, std::size_t size) {
  c10::Allocator* const allocator = allocator_of(name);
  const bool is_on_host = std::string(name) != "cuda";
  c10::DataPtr data = allocator->allocate(size);
  if (is_on_host) std::memset(data.mutable_get(), 77, size);
  try {
    const c10::DataPtr clone = allocator->clone(data.get(), size);
    if (clone.get() == nullptr || clone.get() == data.get()) return 0;
    return !is_on_host || std::memcmp(data.get(), clone.get(), size) == 0;
  } catch (const c10::NotImplementedError&) {
    return -1;
  }
}

// Each thread makes `blocks` blocks, each of a size of its own, and keeps one in three until its end.
extern "C" void allocate_in_threads(const char* name, int threads, int blocks) {
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([=] {
      std::vector<c10::DataPtr> kept;
      for (int block = 0; block < blocks; ++block) {
        c10::DataPtr data = allocator_of(name)->allocate(static_cast<std::size_t>(1 + thread * blocks + block));
        if (block % 3 == 0) kept.push_back(std::move(data));
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}
