#include "definitions.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "format.h"
#include "line_table.h"

namespace alloctrace {
namespace {

// Maximum gap in ids from lost definitions: a corrupt id (the spool has no checksums) must not reserve gigabytes.
constexpr std::uint32_t kMaxIdGap = 1 << 16;
constexpr std::uint64_t kMinRecordBytes = 4;

// Read a name, truncated to kMaxNameBytes.
std::string read_name(ByteReader& fields) {
  const std::string_view text = fields.text();
  if (text.size() <= kMaxNameBytes) return std::string(text);
  std::size_t end = kMaxNameBytes;
  while (end > 0 && (static_cast<std::uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // do not split a UTF-8 character
  return std::string(text.substr(0, end)) + "\u2026";
}

// Read a device index. Of a device type without indices there is one device, 0.
std::int32_t read_device_index(ByteReader& fields, std::int32_t device_type) {
  constexpr std::int32_t kCpu = 0;
  const std::int64_t index = unzigzag(fields.varint());
  if (device_type == kCpu || device_type == kPinnedMemory) return 0;
  if (index < -1 || index > kMaxDeviceIndex) throw DecodeError("a device with an impossible index");
  return static_cast<std::int32_t>(index);
}

// Signed numbers are zigzag varints; unsigned numbers, flags and enumerators are varints; strings are text.
template <typename T>
void put_field(Bytes& out, const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    put_text(out, value);
  } else if constexpr (std::is_signed_v<T>) {
    put_varint(out, zigzag(value));
  } else {
    put_varint(out, static_cast<std::uint64_t>(value));
  }
}

template <typename T>
void read_field(ByteReader& fields, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = read_name(fields);
  } else if constexpr (std::is_same_v<T, std::uint32_t>) {
    value = fields.varint32();
  } else if constexpr (std::is_signed_v<T>) {
    value = static_cast<T>(unzigzag(fields.varint()));
  } else {
    value = static_cast<T>(fields.varint());
  }
}

template <typename... Values>
void put_fields(Bytes& out, const Values&... values) {
  (put_field(out, values), ...);
}

template <typename... Values>
void read_fields(ByteReader& fields, Values&... values) {
  (read_field(fields, values), ...);
}

// Append a record with the fields that `fill` appends, then insert its length before it. A thread_local buffer for the
// record would already be destroyed where another thread_local's destructor frees a tensor.
template <typename Fill>
void fill_record(Bytes& out, DefinitionType type, Fill fill) {
  const std::size_t begin = out.size();
  out.push_back(static_cast<std::uint8_t>(type));
  fill(out);
  Bytes length;
  put_varint(length, out.size() - begin);
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(begin), length.begin(), length.end());
}

template <typename... Values>
void put_record(Bytes& out, DefinitionType type, const Values&... values) {
  fill_record(out, type, [&](Bytes& fields) { put_fields(fields, values...); });
}

}  // namespace

void Definitions::limit_ids(std::uint64_t bytes) {
  max_id_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxIdGap + bytes / kMinRecordBytes, INT32_MAX));
}

template <typename T>
T& Definitions::slot(std::vector<T>& table, std::uint32_t id) {
  if (id == 0 || id > max_id_) throw DecodeError("a definition has an impossible id");
  if (id >= table.size()) table.resize(std::size_t{id} + 1);
  return table[id];
}

void Definitions::add(const std::uint8_t* records, std::size_t size) {
  ByteReader reader(records, size);
  while (!reader.done()) {
    const std::string_view record = reader.text();
    ByteReader fields(reinterpret_cast<const std::uint8_t*>(record.data()), record.size());
    const auto type = static_cast<DefinitionType>(fields.byte());
    add_record(type, fields);
  }
}

// Ignores unknown types and surplus fields, which newer writers add.
void Definitions::add_record(DefinitionType type, ByteReader& fields) {
  switch (type) {
    case DefinitionType::kString:
      return add_string(fields);
    case DefinitionType::kCode:
      return add_code(fields);
    case DefinitionType::kFrame:
      return add_frame(fields);
    case DefinitionType::kThread:
      return add_thread(fields);
    case DefinitionType::kThreadName:
      return add_thread_name(fields);
    case DefinitionType::kLocation:
      return add_location(fields);
    case DefinitionType::kNodeType:
      return add_node_type(fields);
    case DefinitionType::kSourceLine:
      return add_source_line(fields);
    case DefinitionType::kDevice:
      return add_device(fields);
    case DefinitionType::kLibraryBlock:
      return add_library_block(fields);
    case DefinitionType::kHolder:
      return add_holder(fields);
    case DefinitionType::kModule:
      return add_module(fields);
    case DefinitionType::kChild:
      return add_child(fields);
  }
}

// Writer and reader of each record, beside each other: both list its fields.

void put_string(Bytes& out, std::uint32_t id, std::string_view text) {
  put_record(out, DefinitionType::kString, id, text);
}
void Definitions::add_string(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  slot(strings_, id) = read_name(fields);
}

void put_code(Bytes& out, std::uint32_t id, const Code& code) {
  put_record(out, DefinitionType::kCode, id, code.name, code.qualified_name, code.filename, code.first_line,
             code.line_table_kind, code.line_table);
}
void Definitions::add_code(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  Code code;
  read_fields(fields, code.name, code.qualified_name, code.filename, code.first_line, code.line_table_kind);
  code.line_table = fields.text();  // not truncated like a name
  slot(codes_, id) = std::move(code);
}

void put_frame(Bytes& out, std::uint32_t id, const FrameRecord& frame) {
  fill_record(out, DefinitionType::kFrame, [&](Bytes& fields) {
    put_fields(fields, id, frame.parent, frame.code, frame.instruction);
    if (frame.module != 0) put_fields(fields, frame.module);
  });
}
void Definitions::add_frame(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  FrameRecord frame;
  read_fields(fields, frame.parent, frame.code, frame.instruction);
  if (!fields.done()) read_fields(fields, frame.module);
  // A parent is defined before its child: a cycle would hang every walk to the outermost frame.
  if (frame.parent >= id) throw DecodeError("a frame is its own caller");
  if (frame_consumer_) {
    frame_consumer_(frame);
  } else {
    slot(frames_, id) = frame;
  }
}

void put_thread(Bytes& out, std::uint32_t id, const ThreadRecord& thread) {
  put_record(out, DefinitionType::kThread, id, thread.native_id, thread.autograd_id, thread.name);
}
void Definitions::add_thread(ByteReader& fields) {
  ThreadRecord& thread = slot(threads_, fields.varint32());
  read_fields(fields, thread.native_id, thread.autograd_id, thread.name);
}

void put_thread_name(Bytes& out, std::uint32_t id, std::string_view name) {
  put_record(out, DefinitionType::kThreadName, id, name);
}
void Definitions::add_thread_name(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  slot(threads_, id).python_name = read_name(fields);
}

void put_location(Bytes& out, std::uint32_t id, const Location& location) {
  put_record(out, DefinitionType::kLocation, id, location.device_type, location.device_index, location.stream,
             location.pool_first, location.pool_second);
}
void Definitions::add_location(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  Location location;
  read_fields(fields, location.device_type);
  location.device_index = read_device_index(fields, location.device_type);
  read_fields(fields, location.stream, location.pool_first, location.pool_second);
  const std::pair device(location.device_type, location.device_index);
  if (devices_of_locations_.size() == kMaxDevices && !devices_of_locations_.contains(device)) {
    throw DecodeError("more devices than a process can have");
  }
  devices_of_locations_.insert(device);
  slot(locations_, id) = location;
}

void put_node_type(Bytes& out, std::uint32_t id, const NodeType& type) {
  put_record(out, DefinitionType::kNodeType, id, type.mangled, type.name);
}
void Definitions::add_node_type(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  NodeType type;
  read_fields(fields, type.mangled, type.name);
  slot(node_types_, id) = std::move(type);
}

void put_source_line(Bytes& out, std::uint32_t filename, std::uint32_t line, std::string_view text) {
  put_record(out, DefinitionType::kSourceLine, filename, line, text);
}
void Definitions::add_source_line(ByteReader& fields) {
  std::uint32_t filename = 0, line = 0;
  read_fields(fields, filename, line);
  sources_[{filename, line}] = read_name(fields);
}

void put_device(Bytes& out, const DeviceRecord& device) {
  put_record(out, DefinitionType::kDevice, device.device_type, device.device_index, device.bytes, device.name,
             device.uuid, device.pci_address);
}
void Definitions::add_device(ByteReader& fields) {
  DeviceRecord device;
  read_fields(fields, device.device_type);
  device.device_index = read_device_index(fields, device.device_type);
  read_fields(fields, device.bytes, device.name, device.uuid, device.pci_address);
  devices_[{device.device_type, device.device_index}] = std::move(device);
}

void put_library_block(Bytes& out, std::uint64_t event, std::uint64_t address, std::string_view name) {
  put_record(out, DefinitionType::kLibraryBlock, event, address, name);
}
void Definitions::add_library_block(ByteReader& fields) {
  std::uint64_t event = 0, address = 0;
  std::string name;
  read_fields(fields, event, address, name);
  const auto [entry, is_new] = library_numbers_.try_emplace(name, static_cast<std::uint32_t>(library_names_.size()));
  if (is_new) library_names_.push_back(name);
  library_blocks_[{event, address}] = entry->second;
  library_events_ |= std::uint64_t{1} << (event & 63);
}

void put_holder(Bytes& out, const HolderRecord& holder) {
  fill_record(out, DefinitionType::kHolder, [&](Bytes& fields) {
    put_fields(fields, holder.event, holder.line, holder.count, holder.bytes);
    put_fields(fields, holder.holder, holder.path, holder.filename, holder.addresses.size());
    std::uint64_t last = 0;
    for (const std::uint64_t address : holder.addresses) {
      put_varint(fields, zigzag(static_cast<std::int64_t>(address - last)));
      last = address;
    }
    put_fields(fields, holder.is_garbage, holder.containers.size());
    for (const ContainerRecord& container : holder.containers) {
      put_fields(fields, container.type, container.length, container.size, container.bound, container.nones);
    }
    put_fields(fields, holder.nodes, holder.has_all_nodes, holder.foreign_bytes);
    put_fields(fields, holder.name, holder.scope, holder.function, holder.through);
    put_fields(fields, holder.store_kind, holder.store_filename, holder.store_function, holder.store_line);
    put_fields(fields, holder.tensor_bytes, holder.back_reference, holder.dtype);
  });
}
void Definitions::add_holder(ByteReader& fields) {
  HolderRecord holder;
  read_fields(fields, holder.event, holder.line, holder.count, holder.bytes);
  read_fields(fields, holder.holder, holder.path, holder.filename);
  std::uint64_t last = 0;
  // Not reserved in advance: a corrupt count must not allocate memory; each address read consumes at least a byte.
  for (std::uint64_t left = fields.varint(); left > 0; --left) {
    last += static_cast<std::uint64_t>(unzigzag(fields.varint()));
    holder.addresses.push_back(last);
  }
  // Older traces record garbage only in the text.
  holder.is_garbage =
      fields.done() ? holder.holder.ends_with("garbage that the collector has not freed yet") : fields.varint() != 0;
  if (!fields.done()) {  // older traces end here
    for (std::uint64_t left = fields.varint(); left > 0; --left) {
      ContainerRecord container;
      read_fields(fields, container.type, container.length, container.size, container.bound, container.nones);
      holder.containers.push_back(std::move(container));
    }
    read_fields(fields, holder.nodes, holder.has_all_nodes, holder.foreign_bytes);
    if (!fields.done()) read_fields(fields, holder.name, holder.scope, holder.function, holder.through);
    if (!fields.done()) {
      read_fields(fields, holder.store_kind, holder.store_filename, holder.store_function, holder.store_line);
    }
    if (!fields.done()) read_fields(fields, holder.tensor_bytes);
    if (!fields.done()) read_fields(fields, holder.back_reference, holder.dtype);
  }
  const std::uint64_t first = holder.addresses.empty() ? 0 : holder.addresses.front();
  if (holder_keys_.emplace(holder.event, holder.holder, holder.path, first).second)
    holders_.push_back(std::move(holder));
}

void put_module(Bytes& out, std::uint32_t id, const ModuleRecord& module) {
  put_record(out, DefinitionType::kModule, id, module.class_name, module.owner, module.name);
}
void Definitions::add_module(ByteReader& fields) {
  const std::uint32_t id = fields.varint32();
  ModuleRecord module;
  read_fields(fields, module.class_name, module.owner, module.name);
  slot(modules_, id) = module;
}

void put_child(Bytes& out, const ChildRecord& child) {
  put_record(out, DefinitionType::kChild, child.event, child.process_id, child.parent_id, child.start_time,
             child.command);
}
void Definitions::add_child(ByteReader& fields) {
  ChildRecord child;
  read_fields(fields, child.event, child.process_id, child.parent_id, child.start_time, child.command);
  const auto [row, is_new] = child_rows_.try_emplace({child.process_id, child.start_time}, children_.size());
  if (is_new) {
    children_.push_back(std::move(child));
  } else {
    children_[row->second].command = std::move(child.command);
  }
}

Bytes Definitions::records(std::uint64_t holders_since) const {
  Bytes out;
  const auto each = [](const auto& table, auto put) {
    for (std::uint32_t id = 1; id < table.size(); ++id) put(id, table[id], id + 1 == table.size());
  };
  each(strings_, [&](std::uint32_t id, const std::string& text, bool is_last) {
    if (!text.empty() || is_last) put_string(out, id, text);
  });
  each(modules_, [&](std::uint32_t id, const ModuleRecord& module, bool) { put_module(out, id, module); });
  each(codes_, [&](std::uint32_t id, const Code& code, bool is_last) {
    if (code.name != 0 || code.filename != 0 || is_last) put_code(out, id, code);
  });
  // Skip frames lost to corruption (no code), but not the last: synthetic stacks are numbered after the frames.
  each(frames_, [&](std::uint32_t id, const FrameRecord& frame, bool is_last) {
    if (frame.code != 0 || frame.parent != 0 || is_last) put_frame(out, id, frame);
  });
  each(threads_, [&](std::uint32_t id, const ThreadRecord& thread, bool) {
    put_thread(out, id, thread);
    if (!thread.python_name.empty()) put_thread_name(out, id, thread.python_name);
  });
  each(locations_, [&](std::uint32_t id, const Location& location, bool) { put_location(out, id, location); });
  each(node_types_, [&](std::uint32_t id, const NodeType& type, bool is_last) {
    if (!type.name.empty() || is_last) put_node_type(out, id, type);
  });
  for (const auto& [place, text] : sources_) put_source_line(out, place.first, place.second, text);
  for (const auto& [index, device] : devices_) put_device(out, device);
  // Sorted by name number: readers number the names in the order of these records.
  std::vector<std::pair<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>>> blocks;
  for (const auto& [block, name] : library_blocks_) blocks.emplace_back(name, block);
  std::sort(blocks.begin(), blocks.end());
  for (const auto& [name, block] : blocks) put_library_block(out, block.first, block.second, library_names_[name]);
  for (const HolderRecord& holder : holders_) {
    if (holder.event >= holders_since) put_holder(out, holder);
  }
  for (const ChildRecord& child : children_) put_child(out, child);
  return out;
}

bool Definitions::limit_depth() {
  bool is_valid = true;
  std::vector<std::uint16_t> depths(frames_.size());
  for (std::size_t id = 1; id < frames_.size(); ++id) {
    FrameRecord& record = frames_[id];
    if (depths[record.parent] == kMaxStackDepth) {
      record.parent = 0;
      is_valid = false;
    }
    depths[id] = static_cast<std::uint16_t>(depths[record.parent] + 1);
  }
  return is_valid;
}

std::int32_t Definitions::line_of(const FrameRecord& frame) const {
  const Code& owner = code(frame.code);
  return decode_lines(owner.line_table_kind, owner.line_table, owner.first_line, {frame.instruction}).front();
}

// Sorted by code and instruction, so that each line table is decoded once instead of once per frame.
std::vector<std::int32_t> Definitions::lines() const {
  std::vector<std::uint32_t> order(frames_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    return std::tie(frames_[a].code, frames_[a].instruction) < std::tie(frames_[b].code, frames_[b].instruction);
  });
  std::vector<std::int32_t> lines(frames_.size());
  std::vector<std::uint32_t> instructions;
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const std::uint32_t code_id = frames_[order[begin]].code;
    instructions.clear();
    for (; end < order.size() && frames_[order[end]].code == code_id; ++end) {
      instructions.push_back(frames_[order[end]].instruction);
    }
    const Code& owner = code(code_id);
    const std::vector<std::int32_t> group_lines =
        decode_lines(owner.line_table_kind, owner.line_table, owner.first_line, instructions);
    for (std::size_t at = begin; at < end; ++at) lines[order[at]] = group_lines[at - begin];
  }
  return lines;
}

const std::string* Definitions::source(std::uint32_t filename, std::int32_t line) const {
  const auto entry = sources_.find({filename, static_cast<std::uint32_t>(line)});
  return entry == sources_.end() ? nullptr : &entry->second;
}

}  // namespace alloctrace
