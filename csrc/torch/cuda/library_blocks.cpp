#include "library_blocks.h"

#include <link.h>

#include <algorithm>
#include <thread>

#include "torch_release.h"

// torch's header includes headers of libraries that a toolkit may lack.
#if ALLOCTRACE_TORCH_AT_LEAST(2, 10) && __has_include(<cublasLt.h>) && __has_include(<cublas_v2.h>) && \
    __has_include(<cusolverDn.h>) && __has_include(<cusparse.h>)
#define ALLOCTRACE_HAS_WORKSPACE_MAPS 1
#include <ATen/cuda/CUDAContextLight.h>

#include <shared_mutex>
#endif

namespace alloctrace::torch_side {
namespace {

constexpr std::size_t kMaxCandidates = 64;
constexpr std::uint32_t kMaxLookups = 10'000;
std::atomic<std::uintptr_t> code_begin{0}, code_end{0};

#if ALLOCTRACE_HAS_WORKSPACE_MAPS
// Call `visit`, which must neither allocate from torch nor wait, with each workspace. Return false if another thread
// has locked a map. (A forked child may inherit the lock: only torch's CUDA code, which it cannot use, waits for it.)
template <typename Visit>
bool visit_workspaces(Visit visit) {
  using Map = at::cuda::WorkspaceMapWithMutex;
  const std::pair<Map&, const char*> maps[] = {{at::cuda::cublas_handle_stream_to_workspace(), "cuBLAS workspace"},
                                               {at::cuda::cublaslt_handle_stream_to_workspace(), "cuBLASLt workspace"}};
  for (const auto& [workspaces, name] : maps) {
    const std::shared_lock<std::shared_mutex> unchanged(workspaces.mutex, std::try_to_lock);
    if (!unchanged) return false;
    for (const auto& [key, block] : workspaces.map) visit(address_of_workspace(block), name);
  }
  return true;
}
#else
template <typename Visit>
bool visit_workspaces(Visit) {
  return true;
}
#endif

#if ALLOCTRACE_HAS_WORKSPACE_MAPS
int store_code_range(dl_phdr_info* library, std::size_t, void* function) {
  const auto address = reinterpret_cast<std::uintptr_t>(function);
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || address < begin || address >= begin + part.p_memsz) continue;
    code_begin.store(begin, std::memory_order_relaxed);
    code_end.store(begin + part.p_memsz, std::memory_order_relaxed);
    return 1;
  }
  return 0;
}
#endif

}  // namespace

void find_torch_cuda_code() noexcept {
#if ALLOCTRACE_HAS_WORKSPACE_MAPS
  dl_iterate_phdr(store_code_range, reinterpret_cast<void*>(&at::cuda::clearCublasWorkspaces));
#endif
}

bool is_in_torch_cuda(const void* code) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(code);
  return address >= code_begin.load(std::memory_order_relaxed) && address < code_end.load(std::memory_order_relaxed);
}

LibraryWorkspaces read_library_workspaces() {
  LibraryWorkspaces blocks;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    blocks.clear();
    if (visit_workspaces([&](std::uint64_t address, const char* name) { blocks.emplace_back(address, name); })) break;
    std::this_thread::yield();
  }
  return blocks;
}

void LibraryBlocks::add(std::uint32_t thread, std::uint64_t address, std::uint64_t event) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  try {
    // An older block at this address has been freed.
    std::erase_if(candidates_, [&](const Candidate& block) { return block.address == address; });
    if (candidates_.size() == kMaxCandidates) candidates_.erase(candidates_.begin());
    candidates_.push_back({address, event, thread, nullptr, kMaxLookups});
  } catch (...) {  // out of memory: the block stays attributed to its line
  }
  candidate_count_.store(candidates_.size(), std::memory_order_relaxed);
}

void LibraryBlocks::look_up_workspaces(python::Session& session, std::uint32_t thread) noexcept {
  const std::unique_lock<std::mutex> guard(mutex_, std::try_to_lock);
  if (!guard) return;
  const bool is_complete = visit_workspaces([&](std::uint64_t address, const char* name) {
    for (Candidate& block : candidates_) {
      if (block.address == address) block.name = name;
    }
  });
  if (!is_complete) return;
  std::erase_if(candidates_, [&](Candidate& block) {
    if (block.name != nullptr) session.recorder.add_library_block(block.event, block.address, block.name);
    return block.name != nullptr || block.thread == thread || --block.lookups_left == 0;
  });
  candidate_count_.store(candidates_.size(), std::memory_order_relaxed);
}

}  // namespace alloctrace::torch_side
