// Workspaces of cuBLAS and cuBLASLt: blocks kept until the process ends, one per handle (so per thread) and stream.
// Without a name they would be attributed to the user's line with the first multiplication.
//
// torch stores them in two maps, each workspace after its allocation has returned. A block is therefore looked up at
// the program's next allocation, or when the recording ends. Candidates are the few blocks that libtorch_cuda allocated
// directly: libtorch_cpu allocates tensors. Sizes are not compared, so a tensor as large as a workspace is never named.
// Before 2.10, torch accesses these maps without a lock, so they cannot be read safely: workspaces keep their lines.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "../../python/recording/session.h"

namespace alloctrace::torch_side {

// Find libtorch_cuda's code. Call once before the functions below, not in a hook: the dynamic loader takes a lock.
void find_torch_cuda_code() noexcept;
// Return whether an allocation's calling code, at this address, is libtorch_cuda's.
bool is_in_torch_cuda(const void* code) noexcept;

using LibraryWorkspaces = std::vector<std::pair<std::uint64_t, const char*>>;
// Return address and name of each current workspace. Not in a hook: may wait for a thread that creates a workspace.
LibraryWorkspaces read_library_workspaces();

// Blocks of one recording that may be workspaces.
//
// Contract:
// - Any thread may call add() and name(), in hooks. torch's locks are only tried, since a thread that holds one may be
//   allocating.
// - name() does nothing if another thread has the mutex or one of torch's locks: the candidates wait for the next call.
//   Under the mutex only the definition log is called, whose wait for the writer is bounded.
// - A thread sees its own candidates in name(); those of another thread it may see later (candidate_count_ is relaxed).
// - At most 64 candidates are stored. A further one replaces the oldest, which stays attributed to its line, as do
//   the caller's own that the first complete lookup does not find, and others that 10,000 calls do not find.
class LibraryBlocks {
 public:
  // Add a block that this thread allocated from libtorch_cuda. event: number of its alloc.
  [[gnu::cold, gnu::noinline]] void add(std::uint32_t thread, std::uint64_t address, std::uint64_t event) noexcept;
  // Name the blocks that are workspaces by now. A thread stores its workspace before it allocates again, so drop other
  // blocks of `thread` (0: none).
  void name(python::Session& session, std::uint32_t thread) noexcept {
    if (candidate_count_.load(std::memory_order_relaxed) != 0) look_up_workspaces(session, thread);
  }

 private:
  struct Candidate {
    std::uint64_t address, event;
    std::uint32_t thread;
    const char* name;            // nullptr: not found among the workspaces
    std::uint32_t lookups_left;  // limited, since the thread may have ended
  };
  [[gnu::cold, gnu::noinline]] void look_up_workspaces(python::Session& session, std::uint32_t thread) noexcept;

  std::mutex mutex_;
  std::vector<Candidate> candidates_;
  std::atomic<std::size_t> candidate_count_{0};
};

}  // namespace alloctrace::torch_side
