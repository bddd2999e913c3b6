// The calling-context tree: every stack ever seen, each frame once, children under their caller.
//
// A stack is the id of its innermost frame; walking `parent` leads outwards. The table only hands out ids and emits one
// definition per new code object and frame, so the trace stays readable from the definitions alone; nothing here knows
// Python or torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "../base/varint.h"
#include "../format/line_table.h"

namespace alloctrace {

class DefinitionLog;

// Everything about a code object that a reader needs. The views are copied before the call returns.
struct CodeDescription {
  std::string_view name;            // UTF-8: co_name, which is what traceback prints
  std::string_view qualified_name;  // UTF-8: co_qualname (3.11 and later); empty where the interpreter has none
  std::string_view filename;        // UTF-8
  std::int32_t first_line = 0;
  LineTableKind line_table_kind = LineTableKind::kNone;
  std::string_view line_table;  // bytes
};

// What is known about stacks stays in memory as long as the program runs: that must end somewhere. A program that makes
// ever new ones gets what is in the table then; see is_full().
struct StackLimits {
  std::uint32_t frames = std::uint32_t{3} << 20;
  std::uint64_t name_bytes = std::uint64_t{8} << 20;  // of the definitions of names, code objects and modules
};

// Thread-safe. The lock inside is a leaf: while it is held, nothing is called but the definition log, which waits for
// the writer thread at most as long as an event may (spool.h), so no caller can deadlock on it.
class StackTable {
 public:
  explicit StackTable(DefinitionLog& log, const StackLimits& limits = {});
  ~StackTable();
  StackTable(const StackTable&) = delete;
  StackTable& operator=(const StackTable&) = delete;

  // A new code object; ids count from 1. Returns 0 when the definition could not be stored (events that need it then go
  // without their stack, counted).
  std::uint32_t add_code(const CodeDescription& code);

  // The frame that `parent` called, executing `code` at `instruction` (byte offset). parent 0: an outermost frame.
  // module: the one that it calls, 0 for none. The same four give the same id for the life of the table; 0 when the
  // definition could not be stored.
  std::uint32_t frame(std::uint32_t parent, std::uint32_t code, std::uint32_t instruction, std::uint32_t module = 0);

  // A new module; without a name it is known by its class alone. Ids count from 1; 0 when the definition could not be
  // stored.
  std::uint32_t add_module(std::string_view class_name, std::uint32_t owner = 0, std::string_view name = {});
  // What a module is called, and by which: see ModuleRecord. Replaces what was said. False when it could not be stored.
  bool name_module(std::uint32_t id, std::string_view class_name, std::uint32_t owner, std::string_view name);

  // Whether something new was not stored because of the limits: nothing will be from then on, of that kind. What is in
  // the table is found as before.
  bool is_full() const { return is_full_.load(std::memory_order_relaxed); }

  // Appends the definitions of at most `most` frames, from `first` on, and returns the id after the last. They are the
  // bulk of all definitions: nobody needs to hold them a second time.
  std::uint32_t put_frames(std::uint32_t first, std::uint32_t most, Bytes& out);

  // Id of a string, the same for equal text; 0 when it could not be stored. When the table is full, all new ones have
  // one id, of a text that says so.
  std::uint32_t string(std::string_view text);

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
