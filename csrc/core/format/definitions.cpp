#include "definitions.h"

#include <algorithm>
#include <numeric>

#include "format.h"
#include "line_table.h"

namespace alloctrace {
namespace {

// Maximum gap in ids from lost definitions: a corrupt id (the spool has no checksums) must not reserve gigabytes.
constexpr std::uint32_t kMaxIdGap = 1 << 16;
constexpr std::uint64_t kMinRecordBytes = 4;

// Decode a device index. Of a device type without indices there is one device, 0.
std::int32_t decode_device_index(std::int32_t device_type, std::uint64_t encoded) {
  constexpr std::int32_t kCpu = 0;
  if (device_type == kCpu || device_type == kPinnedMemory) return 0;
  const std::int64_t index = unzigzag(encoded);
  if (index < -1 || index > kMaxDeviceIndex) throw DecodeError("a device with an impossible index");
  return static_cast<std::int32_t>(index);
}

// Read a name, truncated to kMaxNameBytes.
std::string read_name(ByteReader& fields) {
  const std::string_view text = fields.text();
  if (text.size() <= kMaxNameBytes) return std::string(text);
  std::size_t end = kMaxNameBytes;
  while (end > 0 && (static_cast<std::uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // do not split a UTF-8 character
  return std::string(text.substr(0, end)) + "\u2026";
}

// Append a record, then insert its length before it. A thread_local buffer for the record would already be destroyed
// where another thread_local's destructor frees a tensor.
template <typename Fill>
void put_record(Bytes& out, DefinitionType type, Fill fill) {
  const std::size_t begin = out.size();
  out.push_back(static_cast<std::uint8_t>(type));
  fill(out);
  Bytes length;
  put_varint(length, out.size() - begin);
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(begin), length.begin(), length.end());
}

}  // namespace

void put_string(Bytes& out, std::uint32_t id, std::string_view text) {
  put_record(out, DefinitionType::kString, [&](Bytes& fields) {
    put_varint(fields, id);
    put_text(fields, text);
  });
}

void put_code(Bytes& out, std::uint32_t id, const Code& code) {
  put_record(out, DefinitionType::kCode, [&](Bytes& fields) {
    put_varint(fields, id);
    put_varint(fields, code.name);
    put_varint(fields, code.qualified_name);
    put_varint(fields, code.filename);
    put_varint(fields, zigzag(code.first_line));
    put_varint(fields, static_cast<std::uint64_t>(code.line_table_kind));
    put_text(fields, code.line_table);
  });
}

void put_frame(Bytes& out, std::uint32_t id, const FrameRecord& frame) {
  put_record(out, DefinitionType::kFrame, [&](Bytes& fields) {
    put_varint(fields, id);
    put_varint(fields, frame.parent);
    put_varint(fields, frame.code);
    put_varint(fields, frame.instruction);
    if (frame.module != 0) put_varint(fields, frame.module);
  });
}

void put_thread(Bytes& out, std::uint32_t id, const ThreadRecord& thread) {
  put_record(out, DefinitionType::kThread, [&](Bytes& fields) {
    put_varint(fields, id);
    put_varint(fields, thread.native_id);
    put_varint(fields, thread.autograd_id);
    put_text(fields, thread.name);
  });
}

void put_thread_name(Bytes& out, std::uint32_t id, std::string_view name) {
  put_record(out, DefinitionType::kThreadName, [&](Bytes& fields) {
    put_varint(fields, id);
    put_text(fields, name);
  });
}

void put_location(Bytes& out, std::uint32_t id, const Location& location) {
  put_record(out, DefinitionType::kLocation, [&](Bytes& fields) {
    put_varint(fields, id);
    put_varint(fields, zigzag(location.device_type));
    put_varint(fields, zigzag(location.device_index));
    put_varint(fields, location.stream);
    put_varint(fields, location.pool_first);
    put_varint(fields, location.pool_second);
  });
}

void put_node_type(Bytes& out, std::uint32_t id, const NodeType& type) {
  put_record(out, DefinitionType::kNodeType, [&](Bytes& fields) {
    put_varint(fields, id);
    put_varint(fields, type.mangled ? 1 : 0);
    put_text(fields, type.name);
  });
}

void put_source_line(Bytes& out, std::uint32_t filename, std::uint32_t line, std::string_view text) {
  put_record(out, DefinitionType::kSourceLine, [&](Bytes& fields) {
    put_varint(fields, filename);
    put_varint(fields, line);
    put_text(fields, text);
  });
}

void put_device(Bytes& out, const DeviceRecord& device) {
  put_record(out, DefinitionType::kDevice, [&](Bytes& fields) {
    put_varint(fields, zigzag(device.device_type));
    put_varint(fields, zigzag(device.device_index));
    put_varint(fields, device.bytes);
    put_text(fields, device.name);
    put_text(fields, device.uuid);
    put_text(fields, device.pci_address);
  });
}

void put_library_block(Bytes& out, std::uint64_t event, std::uint64_t address, std::string_view name) {
  put_record(out, DefinitionType::kLibraryBlock, [&](Bytes& fields) {
    put_varint(fields, event);
    put_varint(fields, address);
    put_text(fields, name);
  });
}

void put_holder(Bytes& out, const HolderRecord& holder) {
  put_record(out, DefinitionType::kHolder, [&](Bytes& fields) {
    put_varint(fields, holder.event);
    put_varint(fields, holder.line);
    put_varint(fields, holder.count);
    put_varint(fields, holder.bytes);
    put_text(fields, holder.holder);
    put_text(fields, holder.path);
    put_text(fields, holder.filename);
    put_varint(fields, holder.addresses.size());
    std::uint64_t last = 0;
    for (const std::uint64_t address : holder.addresses) {
      put_varint(fields, zigzag(static_cast<std::int64_t>(address - last)));
      last = address;
    }
    put_varint(fields, holder.is_garbage ? 1 : 0);
  });
}

void put_module(Bytes& out, std::uint32_t id, const ModuleRecord& module) {
  put_record(out, DefinitionType::kModule, [&](Bytes& fields) {
    put_varint(fields, id);
    put_varint(fields, module.class_name);
    put_varint(fields, module.owner);
    put_varint(fields, module.name);
  });
}

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

// Read the fields of one record. Ignores unknown types and surplus fields, which newer writers add.
void Definitions::add_record(DefinitionType type, ByteReader fields) {
  switch (type) {
    case DefinitionType::kString: {
      const std::uint32_t id = fields.varint32();
      slot(strings_, id) = read_name(fields);
      break;
    }
    case DefinitionType::kCode: {
      const std::uint32_t id = fields.varint32();
      Code code;
      code.name = fields.varint32();
      code.qualified_name = fields.varint32();
      code.filename = fields.varint32();
      code.first_line = static_cast<std::int32_t>(unzigzag(fields.varint()));
      code.line_table_kind = static_cast<LineTableKind>(fields.varint());
      code.line_table = fields.text();
      slot(codes_, id) = std::move(code);
      break;
    }
    case DefinitionType::kFrame: {
      const std::uint32_t id = fields.varint32();
      FrameRecord frame;
      frame.parent = fields.varint32();
      frame.code = fields.varint32();
      frame.instruction = fields.varint32();
      if (!fields.done()) frame.module = fields.varint32();
      // A parent is defined before its child: a cycle would hang every walk to the outermost frame.
      if (frame.parent >= id) throw DecodeError("a frame is its own caller");
      if (frame_consumer_) {
        frame_consumer_(frame);
      } else {
        slot(frames_, id) = frame;
      }
      break;
    }
    case DefinitionType::kThread: {
      const std::uint32_t id = fields.varint32();
      ThreadRecord& thread = slot(threads_, id);
      thread.native_id = fields.varint();
      thread.autograd_id = fields.varint();
      thread.name = read_name(fields);
      break;
    }
    case DefinitionType::kThreadName: {
      const std::uint32_t id = fields.varint32();
      slot(threads_, id).python_name = read_name(fields);
      break;
    }
    case DefinitionType::kLocation: {
      const std::uint32_t id = fields.varint32();
      Location location;
      location.device_type = static_cast<std::int32_t>(unzigzag(fields.varint()));
      location.device_index = decode_device_index(location.device_type, fields.varint());
      location.stream = fields.varint();
      location.pool_first = fields.varint();
      location.pool_second = fields.varint();
      const std::pair device(location.device_type, location.device_index);
      if (devices_of_locations_.size() == kMaxDevices && !devices_of_locations_.contains(device)) {
        throw DecodeError("more devices than a process can have");
      }
      devices_of_locations_.insert(device);
      slot(locations_, id) = location;
      break;
    }
    case DefinitionType::kNodeType: {
      const std::uint32_t id = fields.varint32();
      NodeType type_record;
      type_record.mangled = fields.varint() != 0;
      type_record.name = read_name(fields);
      slot(node_types_, id) = std::move(type_record);
      break;
    }
    case DefinitionType::kSourceLine: {
      const std::uint32_t filename = fields.varint32();
      const std::uint32_t line = fields.varint32();
      sources_[{filename, line}] = read_name(fields);
      break;
    }
    case DefinitionType::kDevice: {
      DeviceRecord device;
      device.device_type = static_cast<std::int32_t>(unzigzag(fields.varint()));
      device.device_index = decode_device_index(device.device_type, fields.varint());
      device.bytes = fields.varint();
      device.name = read_name(fields);
      device.uuid = read_name(fields);
      device.pci_address = read_name(fields);
      devices_[{device.device_type, device.device_index}] = std::move(device);
      break;
    }
    case DefinitionType::kLibraryBlock: {
      const std::uint64_t event = fields.varint(), address = fields.varint();
      const std::string name = read_name(fields);
      const auto [entry, is_new] =
          library_numbers_.try_emplace(name, static_cast<std::uint32_t>(library_names_.size()));
      if (is_new) library_names_.push_back(name);
      library_blocks_[{event, address}] = entry->second;
      library_events_ |= std::uint64_t{1} << (event & 63);
      break;
    }
    case DefinitionType::kHolder: {
      HolderRecord holder;
      holder.event = fields.varint();
      holder.line = fields.varint();
      holder.count = fields.varint();
      holder.bytes = fields.varint();
      holder.holder = read_name(fields);
      holder.path = read_name(fields);
      holder.filename = read_name(fields);
      std::uint64_t last = 0;
      // Not reserved in advance: a corrupt count must not allocate memory; each address read consumes at least a byte.
      for (std::uint64_t left = fields.varint(); left > 0; --left) {
        last += static_cast<std::uint64_t>(unzigzag(fields.varint()));
        holder.addresses.push_back(last);
      }
      // Older traces record garbage only in the text.
      holder.is_garbage = fields.done() ? holder.holder.ends_with("garbage that the collector has not freed yet")
                                        : fields.varint() != 0;
      const std::uint64_t first = holder.addresses.empty() ? 0 : holder.addresses.front();
      if (holder_keys_.emplace(holder.event, holder.holder, holder.path, first).second)
        holders_.push_back(std::move(holder));
      break;
    }
    case DefinitionType::kModule: {
      const std::uint32_t id = fields.varint32();
      ModuleRecord module;
      module.class_name = fields.varint32();
      module.owner = fields.varint32();
      module.name = fields.varint32();
      slot(modules_, id) = module;
      break;
    }
    default:
      break;
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
