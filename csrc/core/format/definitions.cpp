#include "definitions.h"

#include <algorithm>

#include "line_table.h"

namespace alloctrace {
namespace {

// Ids are given out one after the other, so only lost definitions make one run ahead of those known. A wild id
// (definitions in the spool have no checksum) must not make us reserve gigabytes.
constexpr std::size_t kMaxIdsSkipped = std::size_t{1} << 20;

template <typename T>
T& slot(std::vector<T>& table, std::uint32_t id) {
  if (id == 0 || id > table.size() + kMaxIdsSkipped) throw DecodeError("a definition has an impossible id");
  if (id >= table.size()) table.resize(std::size_t{id} + 1);
  return table[id];
}

// The record is written in place and its length put before it: a thread_local buffer would be gone when a tensor is
// freed by another thread_local's destructor.
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

void Definitions::add(const std::uint8_t* records, std::size_t size) {
  ByteReader reader(records, size);
  while (!reader.done()) {
    const std::string_view record = reader.text();
    ByteReader fields(reinterpret_cast<const std::uint8_t*>(record.data()), record.size());
    const auto type = static_cast<DefinitionType>(fields.byte());
    add_record(type, fields);
  }
}

// The fields of one record. Bytes left over are a newer writer's additions and are ignored, as are types unknown here.
void Definitions::add_record(DefinitionType type, ByteReader fields) {
  switch (type) {
    case DefinitionType::kString: {
      const std::uint32_t id = fields.varint32();
      slot(strings_, id) = fields.text();
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
      // Parents are always defined first: this also rules out cycles, which would hang whoever walks outwards.
      if (frame.parent >= id) throw DecodeError("a frame is its own caller");
      slot(frames_, id) = frame;
      break;
    }
    case DefinitionType::kThread: {
      const std::uint32_t id = fields.varint32();
      ThreadRecord& thread = slot(threads_, id);
      thread.native_id = fields.varint();
      thread.autograd_id = fields.varint();
      thread.name = fields.text();
      break;
    }
    case DefinitionType::kThreadName: {
      const std::uint32_t id = fields.varint32();
      slot(threads_, id).python_name = fields.text();
      break;
    }
    case DefinitionType::kLocation: {
      const std::uint32_t id = fields.varint32();
      Location location;
      location.device_type = static_cast<std::int32_t>(unzigzag(fields.varint()));
      location.device_index = static_cast<std::int32_t>(unzigzag(fields.varint()));
      location.stream = fields.varint();
      location.pool_first = fields.varint();
      location.pool_second = fields.varint();
      slot(locations_, id) = location;
      break;
    }
    case DefinitionType::kNodeType: {
      const std::uint32_t id = fields.varint32();
      NodeType type_record;
      type_record.mangled = fields.varint() != 0;
      type_record.name = fields.text();
      slot(node_types_, id) = std::move(type_record);
      break;
    }
    case DefinitionType::kSourceLine: {
      const std::uint32_t filename = fields.varint32();
      const std::uint32_t line = fields.varint32();
      sources_[{filename, line}] = fields.text();
      break;
    }
    case DefinitionType::kDevice: {
      DeviceRecord device;
      device.device_type = static_cast<std::int32_t>(unzigzag(fields.varint()));
      device.device_index = static_cast<std::int32_t>(unzigzag(fields.varint()));
      device.bytes = fields.varint();
      device.name = fields.text();
      device.uuid = fields.text();
      device.pci_address = fields.text();
      devices_[{device.device_type, device.device_index}] = std::move(device);
      break;
    }
    case DefinitionType::kLibraryBlock: {
      const std::uint64_t event = fields.varint(), address = fields.varint();
      const std::string name(fields.text());
      const auto known = std::find(library_names_.begin(), library_names_.end(), name);
      const auto number = static_cast<std::uint32_t>(known - library_names_.begin());
      if (known == library_names_.end()) library_names_.push_back(name);
      library_blocks_[{event, address}] = number;
      library_events_ |= std::uint64_t{1} << (event & 63);
      break;
    }
    default:
      break;
  }
}

std::int32_t Definitions::line(std::uint32_t frame_id) const {
  const FrameRecord& record = frame(frame_id);
  const Code& owner = code(record.code);
  return decode_line(owner.line_table_kind, owner.line_table, owner.first_line, record.instruction);
}

const std::string* Definitions::source(std::uint32_t filename, std::int32_t line) const {
  const auto found = sources_.find({filename, static_cast<std::uint32_t>(line)});
  return found == sources_.end() ? nullptr : &found->second;
}

}  // namespace alloctrace
