#include "stack_table.h"

#include <string>

#include "../format/definitions.h"
#include "definition_log.h"
#include "id_table.h"

namespace alloctrace {
namespace {

constexpr std::string_view kTooManyNames = "(one of too many names)";

}  // namespace

struct StackTable::Tables {
  IdTable<std::string, TextHash> strings;
  FrameTable frames;
  std::uint32_t next_code = 1, next_module = 1;
  std::uint64_t name_bytes = 0;
  Bytes record;  // reused between calls
};

StackTable::StackTable(DefinitionLog& log, const StackLimits& limits)
    : log_(log), limits_(limits), tables_(std::make_unique<Tables>()) {}
StackTable::~StackTable() = default;

// Return whether the record of a name, code object or module is within the limit.
bool StackTable::fits_locked(bool is_limited) {
  if (!is_limited || tables_->name_bytes + tables_->record.size() <= limits_.name_bytes) return true;
  tables_->name_bytes = limits_.name_bytes;  // shorter records that follow are refused too
  is_full_.store(true, std::memory_order_relaxed);
  return false;
}

bool StackTable::append_locked(bool is_limited) {
  if (!fits_locked(is_limited) || !log_.append(tables_->record)) return false;
  tables_->name_bytes += tables_->record.size();
  return true;
}

std::uint32_t StackTable::string_locked(std::string_view text, bool is_limited) {
  // Look the text up first: find_or_add() would keep the key of a string that exceeds the limit.
  if (const std::uint32_t id = tables_->strings.find(text)) return id;
  tables_->record.clear();
  put_string(tables_->record, tables_->strings.next_id(), text);
  if (!fits_locked(is_limited)) return 0;
  return tables_->strings.find_or_add(text, [&](std::uint32_t) { return append_locked(is_limited); });
}

std::uint32_t StackTable::string_id(std::string_view text) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const std::uint32_t id = string_locked(text);
  return id != 0 || !is_full() ? id : string_locked(kTooManyNames, false);
}

std::uint32_t StackTable::add_code(const CodeDescription& description) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Code code;
  // Stop at the first string that cannot be stored: each further one may wait for the writer.
  code.name = string_locked(description.name);
  if (code.name == 0) return 0;
  code.qualified_name = description.qualified_name.empty() ? 0 : string_locked(description.qualified_name);
  code.filename = string_locked(description.filename);
  if (code.filename == 0) return 0;
  code.first_line = description.first_line;
  code.line_table_kind = description.line_table_kind;
  code.line_table = description.line_table;
  tables_->record.clear();
  put_code(tables_->record, tables_->next_code, code);
  return append_locked() ? tables_->next_code++ : 0;
}

std::uint32_t StackTable::frame_id(std::uint32_t parent, std::uint32_t code, std::uint32_t instruction,
                                   std::uint32_t module) {
  const std::lock_guard<std::mutex> guard(mutex_);
  FrameTable& frames = tables_->frames;
  const FrameRecord frame{parent, code, instruction, module};
  if (const std::uint32_t id = frames.find(frame)) return id;
  if (frames.count() >= limits_.frames) {
    is_full_.store(true, std::memory_order_relaxed);
    return 0;
  }
  // Allocate before the definition is stored: if that failed afterwards, the next frame would get the id as well.
  frames.reserve_next();
  tables_->record.clear();
  put_frame(tables_->record, frames.next_id(), frame);
  return log_.append(tables_->record) ? frames.add(frame) : 0;
}

std::uint32_t StackTable::put_frames(std::uint32_t first, std::uint32_t max_frames, Bytes& out) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const FrameTable& frames = tables_->frames;
  std::uint32_t id = first;
  for (; id <= frames.count() && id - first < max_frames; ++id) put_frame(out, id, frames[id]);
  return id;
}

bool StackTable::module_locked(std::uint32_t id, std::string_view class_name, std::uint32_t owner,
                               std::string_view name) {
  ModuleRecord module;
  module.class_name = string_locked(class_name);
  if (module.class_name == 0) return false;
  module.owner = owner;
  if (!name.empty() && (module.name = string_locked(name)) == 0) return false;
  tables_->record.clear();
  put_module(tables_->record, id, module);
  return append_locked();
}

std::uint32_t StackTable::add_module(std::string_view class_name, std::uint32_t owner, std::string_view name) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return module_locked(tables_->next_module, class_name, owner, name) ? tables_->next_module++ : 0;
}

bool StackTable::name_module(std::uint32_t id, std::string_view class_name, std::uint32_t owner,
                             std::string_view name) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return module_locked(id, class_name, owner, name);
}

}  // namespace alloctrace
