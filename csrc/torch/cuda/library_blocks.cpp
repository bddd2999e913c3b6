#include "library_blocks.h"

#include <link.h>

#include <algorithm>
#include <thread>

#include "torch_release.h"

// torch's header includes those of libraries that a toolkit may lack.
#if ALLOCTRACE_TORCH_AT_LEAST(2, 10) && __has_include(<cublasLt.h>) && __has_include(<cublas_v2.h>) && \
    __has_include(<cusolverDn.h>) && __has_include(<cusparse.h>)
#define ALLOCTRACE_KNOWS_WORKSPACES 1
#include <ATen/cuda/CUDAContextLight.h>

#include <shared_mutex>
#endif

namespace alloctrace::torch_side {
namespace {

constexpr std::size_t kMostWaiting = 64;
constexpr std::uint32_t kMostLooks = 10'000;
std::atomic<std::uintptr_t> code_begin{0}, code_end{0};

#if ALLOCTRACE_KNOWS_WORKSPACES

// What is called with address and name of each workspace must neither allocate from torch nor wait. False if torch is
// just changing one of its maps: not all were visited. (A child that is forked while a map's lock is held inherits it
// so; torch does not let it use CUDA, and nothing else takes the lock.)
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

#if ALLOCTRACE_KNOWS_WORKSPACES
int take_code_of(dl_phdr_info* library, std::size_t, void* wanted) {
  const auto address = reinterpret_cast<std::uintptr_t>(wanted);
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

void find_torch_cuda() noexcept {
#if ALLOCTRACE_KNOWS_WORKSPACES
  dl_iterate_phdr(take_code_of, reinterpret_cast<void*>(&at::cuda::clearCublasWorkspaces));
#endif
}

bool is_in_torch_cuda(const void* code) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(code);
  return address >= code_begin.load(std::memory_order_relaxed) && address < code_end.load(std::memory_order_relaxed);
}

LibraryWorkspaces library_workspaces() {
  LibraryWorkspaces found;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    found.clear();
    if (visit_workspaces([&](std::uint64_t address, const char* name) { found.emplace_back(address, name); })) break;
    std::this_thread::yield();
  }
  return found;
}

void LibraryBlocks::note(std::uint32_t thread, std::uint64_t address, std::uint64_t event) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  try {
    // Whatever was at this address is gone.
    std::erase_if(waiting_, [&](const Waiting& one) { return one.address == address; });
    if (waiting_.size() == kMostWaiting) waiting_.erase(waiting_.begin());
    waiting_.push_back({address, event, thread, nullptr, kMostLooks});
  } catch (...) {  // for want of memory: it stays on its line
  }
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
}

void LibraryBlocks::look(python::Session& session, std::uint32_t thread) noexcept {
  const std::unique_lock<std::mutex> guard(mutex_, std::try_to_lock);
  if (!guard) return;
  const bool is_known = visit_workspaces([&](std::uint64_t address, const char* name) {
    for (Waiting& one : waiting_) {
      if (one.address == address) one.name = name;
    }
  });
  if (!is_known) return;
  std::erase_if(waiting_, [&](Waiting& one) {
    if (one.name != nullptr) session.recorder.add_library_block(one.event, one.address, one.name);
    return one.name != nullptr || one.thread == thread || --one.left == 0;
  });
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
}

}  // namespace alloctrace::torch_side
