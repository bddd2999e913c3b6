#include "stack_table.h"

#include <string>

#include "../format/definitions.h"
#include "definition_log.h"
#include "id_table.h"

namespace alloctrace {
namespace {

struct FrameKey {
  std::uint32_t parent, code, instruction, module;
  bool operator==(const FrameKey&) const = default;
};
struct FrameKeyHash {
  std::size_t operator()(const FrameKey& key) const noexcept {
    std::uint64_t mixed = (std::uint64_t{key.parent} << 32 | key.code) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 29 ^ key.instruction ^ std::uint64_t{key.module} << 32) * 0xC2B2AE3D27D4EB4Fu;
    return static_cast<std::size_t>(mixed ^ mixed >> 32);
  }
};

}  // namespace

struct StackTable::Tables {
  IdTable<std::string, TextHash> strings;
  IdTable<FrameKey, FrameKeyHash> frames;
  std::uint32_t next_code = 1, next_module = 1;
  Bytes record;  // reused between calls
};

StackTable::StackTable(DefinitionLog& log) : log_(log), tables_(std::make_unique<Tables>()) {}
StackTable::~StackTable() = default;

std::uint32_t StackTable::string_locked(std::string_view text) {
  return tables_->strings.id_of(text, [&](std::uint32_t id) {
    tables_->record.clear();
    put_string(tables_->record, id, text);
    return log_.append(tables_->record);
  });
}

std::uint32_t StackTable::string(std::string_view text) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return string_locked(text);
}

std::uint32_t StackTable::add_code(const CodeDescription& description) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Code code;
  // One after the other, up to the first that cannot be stored: each may wait for the writer.
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
  return log_.append(tables_->record) ? tables_->next_code++ : 0;
}

std::uint32_t StackTable::frame(std::uint32_t parent, std::uint32_t code, std::uint32_t instruction,
                                std::uint32_t module) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return tables_->frames.id_of(FrameKey{parent, code, instruction, module}, [&](std::uint32_t id) {
    tables_->record.clear();
    put_frame(tables_->record, id, {parent, code, instruction, module});
    return log_.append(tables_->record);
  });
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
  return log_.append(tables_->record);
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
