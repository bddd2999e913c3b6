// Blocks that CUDA's libraries keep for themselves, and which would otherwise be blamed on the line of the user's code
// that happened to multiply first: the workspaces of cuBLAS and cuBLASLt, one for each handle (that is, thread) and
// stream, kept until the process ends.
//
// torch keeps them in two maps, which say exactly which blocks they are. A workspace is put there when its allocation
// has returned, so the block is looked up at the next allocation of the program, or when the recording ends; only
// blocks that libtorch_cuda allocated directly are, which are few: tensors are allocated by libtorch_cpu. No size is
// compared, so a tensor as large as a workspace stays what it is.
//
// Before 2.10 torch reads and writes these maps without a lock. Nobody else can look into them safely, and the
// workspaces stay on the lines that needed them.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "../../python/recording/session.h"

namespace alloctrace::torch_side {

// To be called once before the functions below, not in a hook: it asks the dynamic loader, which has a lock.
void find_torch_cuda() noexcept;
// Whether the code at this address, from which an allocation was called, is libtorch_cuda's.
bool is_in_torch_cuda(const void* code) noexcept;

using LibraryWorkspaces = std::vector<std::pair<std::uint64_t, const char*>>;
// Address and name of each workspace there is now. Not in a hook: it may wait for a thread that is making one.
LibraryWorkspaces library_workspaces();

// The blocks of one recording that may be workspaces. In a hook; takes no lock that it would have to wait for.
class LibraryBlocks {
 public:
  // A thread has allocated a block from libtorch_cuda. event: the number of the alloc.
  [[gnu::cold, gnu::noinline]] void note(std::uint32_t thread, std::uint64_t address, std::uint64_t event) noexcept;
  // Names those blocks that are workspaces by now, for the trace. A thread that allocates again has put away what it
  // allocated before: what is none then is forgotten. thread 0: none.
  void name(python::Session& session, std::uint32_t thread) noexcept {
    if (waiting_count_.load(std::memory_order_relaxed) != 0) look(session, thread);
  }

 private:
  struct Waiting {
    std::uint64_t address, event;
    std::uint32_t thread;
    const char* name;    // nullptr: not known to be a workspace
    std::uint32_t left;  // how often it is still looked up: its thread may be gone
  };
  [[gnu::cold, gnu::noinline]] void look(python::Session& session, std::uint32_t thread) noexcept;

  std::mutex mutex_;
  std::vector<Waiting> waiting_;
  std::atomic<std::size_t> waiting_count_{0};
};

}  // namespace alloctrace::torch_side
