// The calling-context tree of all stacks: each frame is stored once, with its caller as `parent`. A stack is the id of
// its innermost frame. The table assigns ids, and writes one definition per new code object and frame to the log.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "../base/hash.h"
#include "../base/varint.h"
#include "../format/definitions.h"
#include "../format/line_table.h"

namespace alloctrace {

// Hash table of the frames of all stacks: 16 bytes per frame and one or two slots of 4 bytes. A long program has a
// million frames; std::unordered_map would need five times the memory. Guarded by StackTable's mutex.
class FrameTable {
 public:
  // Return the id of a frame, counted from 1 in the order of add(); 0 if the frame is not in the table.
  std::uint32_t find(const FrameRecord& frame) const {
    if (slots_.empty()) return 0;
    for (std::size_t at = hash(frame) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == 0 || (*this)[slots_[at]] == frame) return slots_[at];
    }
  }
  // Allocate the memory that the next add() needs. Throws std::bad_alloc.
  void reserve_next() {
    if (count_ % kChunkFrames == 0 && chunks_.size() == count_ / kChunkFrames) {
      chunks_.push_back(std::make_unique<FrameRecord[]>(kChunkFrames));
    }
    if (4 * (std::size_t{count_} + 1) <= 3 * slots_.size()) return;
    std::vector<std::uint32_t> slots(slots_.empty() ? kMinSlots : 2 * slots_.size());
    slots_.swap(slots);
    slots = {};
    for (std::uint32_t id = 1; id <= count_; ++id) slots_[free_slot((*this)[id])] = id;
  }
  std::uint32_t next_id() const { return count_ + 1; }
  // Add a frame that is not in the table. Call reserve_next() first.
  std::uint32_t add(const FrameRecord& frame) noexcept {
    chunks_[count_ / kChunkFrames][count_ % kChunkFrames] = frame;
    slots_[free_slot(frame)] = ++count_;
    return count_;
  }

  std::uint32_t count() const { return count_; }
  const FrameRecord& operator[](std::uint32_t id) const {
    return chunks_[(id - 1) / kChunkFrames][(id - 1) % kChunkFrames];
  }

 private:
  static constexpr std::uint32_t kChunkFrames = 4096;
  static constexpr std::size_t kMinSlots = 1024;

  static std::size_t hash(const FrameRecord& frame) noexcept {
    std::uint64_t mixed = (std::uint64_t{frame.parent} << 32 | frame.code) * kGoldenRatio;
    mixed = (mixed ^ mixed >> 29 ^ frame.instruction ^ std::uint64_t{frame.module} << 32) * 0xC2B2AE3D27D4EB4Fu;
    return static_cast<std::size_t>(mixed ^ mixed >> 32);
  }
  std::size_t free_slot(const FrameRecord& frame) const noexcept {
    std::size_t at = hash(frame) & (slots_.size() - 1);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<std::unique_ptr<FrameRecord[]>> chunks_;  // in chunks: growth copies no frame
  std::vector<std::uint32_t> slots_;                    // ids by hash; a power of two, at most 3/4 used
  std::uint32_t count_ = 0;
};

class DefinitionLog;

// Description of a code object for readers. add_code() copies the views.
struct CodeDescription {
  std::string_view name;            // UTF-8: co_name, as in tracebacks
  std::string_view qualified_name;  // UTF-8: co_qualname (3.11 and later); empty where the interpreter has none
  std::string_view filename;        // UTF-8
  std::int32_t first_line = 0;
  LineTableKind line_table_kind = LineTableKind::kNone;
  std::string_view line_table;  // bytes
};

// Limits of the table's memory, which grows as long as the program calls from new stacks; see is_full().
struct StackLimits {
  std::uint32_t frames = std::uint32_t{3} << 20;
  std::uint64_t name_bytes = std::uint64_t{8} << 20;  // of the definitions of names, code objects and modules
};

// Contract between the hooks and the writer thread:
// - Every function may be called from any thread. A call holds the mutex to its end, except is_full().
// - The mutex is a leaf: while it is held, only the definition log is called, whose wait for the writer thread is
//   bounded by SpoolOptions::wait_ns. So no caller can deadlock.
// - An id is returned only after its definition is in the log. The first definitions of one kind are in the log in the
//   order of their ids.
// - If the log or the table is full, the new definition is discarded and the call returns 0, or from string_id() the
//   placeholder's id. Stored definitions keep their ids. After a full log the next call with the same arguments tries
//   again; a full table stays full.
// - is_full() never returns to false. A thread whose call returned 0 because of a limit reads true.
class StackTable {
 public:
  explicit StackTable(DefinitionLog& log, const StackLimits& limits = {});
  ~StackTable();
  StackTable(const StackTable&) = delete;
  StackTable& operator=(const StackTable&) = delete;

  // Add a code object and return its id, from 1; 0 if the definition could not be stored. Events that need the code
  // object then have no stack and are counted as unknown_stacks.
  std::uint32_t add_code(const CodeDescription& code);

  // Return the id of the frame that `parent` called and that executes `code` at `instruction` (byte offset), equal for
  // equal arguments; 0 if the definition could not be stored. parent 0: an outermost frame. module: the module that the
  // frame calls, 0: none.
  std::uint32_t frame_id(std::uint32_t parent, std::uint32_t code, std::uint32_t instruction, std::uint32_t module = 0);

  // Add a module, whose name may be empty, and return its id, from 1; 0 if the definition could not be stored.
  std::uint32_t add_module(std::string_view class_name, std::uint32_t owner = 0, std::string_view name = {});
  // Replace the class, owner and name of a module (ModuleRecord). Returns false if the definition could not be stored.
  bool name_module(std::uint32_t id, std::string_view class_name, std::uint32_t owner, std::string_view name);

  // Return whether a limit was reached: no further frame, or no further name, is stored. Stored ones keep their ids.
  bool is_full() const { return is_full_.load(std::memory_order_relaxed); }

  // Append the definitions of at most `max_frames` frames from id `first` on, and return the id after the last. Most
  // definitions are frames: the writer repeats them from here instead of storing a second copy.
  std::uint32_t put_frames(std::uint32_t first, std::uint32_t max_frames, Bytes& out);

  // Return the id of a string, equal for equal text; 0 if it could not be stored. In a full table all new strings share
  // the id of a placeholder text.
  std::uint32_t string_id(std::string_view text);

 private:
  struct Tables;
  std::uint32_t string_locked(std::string_view text, bool is_limited = true);
  bool fits_locked(bool is_limited);
  bool append_locked(bool is_limited = true);
  bool module_locked(std::uint32_t id, std::string_view class_name, std::uint32_t owner, std::string_view name);
  std::mutex mutex_;
  DefinitionLog& log_;
  const StackLimits limits_;
  std::atomic<bool> is_full_{false};
  std::unique_ptr<Tables> tables_;
};

}  // namespace alloctrace
