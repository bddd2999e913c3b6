// Definitions of the ids in events: strings, code objects, frames, threads, locations, node types, source lines. A
// record `varint byte count | type | fields` precedes the first event that uses its id. Repeated records are harmless.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "../base/varint.h"
#include "event.h"
#include "line_table.h"

namespace alloctrace {

// Fields are varints in the order written here; `text` is a varint byte count and UTF-8 bytes.
enum class DefinitionType : std::uint8_t {
  kString = 1,  // id, text
  kCode = 2,    // id, name string, qualified name string, filename string, zigzag first line, table kind, table bytes
  kFrame = 3,   // id, parent frame (0: outermost), code, instruction byte offset, called module (absent: none)
  kThread = 4,  // id, native thread id, autograd (RecordFunction) thread id, name text from the system
  kThreadName = 5,     // thread id, name text from Python
  kLocation = 6,       // id, device type (c10::DeviceType), device index, stream, first and second number of the pool
  kNodeType = 7,       // id, 1 if the name is a mangled C++ type name, name text
  kSourceLine = 8,     // filename string, line number, text of that line
  kDevice = 9,         // device type, device index, bytes, name text, UUID text, PCI address text
  kLibraryBlock = 10,  // event number of its alloc (of the allocator state, if older), address, name text
  kModule = 11,        // id, class name string, owning module (0: none), string of its name in the owner (0: unknown)
  kHolder = 13,  // see HolderRecord: event, line, count, bytes, holder text, path text, file text, number of addresses,
                 // zigzag difference of each to the one before, 1 if garbage (not in older traces)
  kChild = 14,   // event, process id, process id of its parent, start time, command text: see ChildRecord
};

struct Code {
  std::uint32_t name = 0, qualified_name = 0, filename = 0;  // string ids
  std::int32_t first_line = 0;
  LineTableKind line_table_kind = LineTableKind::kNone;
  std::string line_table;
};
struct FrameRecord {
  std::uint32_t parent = 0, code = 0, instruction = 0;
  std::uint32_t module = 0;  // the module that this frame calls
  bool operator==(const FrameRecord&) const = default;
};
// torch.nn.Module instance, or several that cannot be told apart. A later record may add the owner.
struct ModuleRecord {
  std::uint32_t class_name = 0;  // string ids
  std::uint32_t owner = 0;       // the module that contains this one; 0: none or unknown
  std::uint32_t name = 0;        // attribute name in the owner, or own name without an owner; 0: unknown
};
struct ThreadRecord {
  std::uint64_t native_id = 0;
  std::uint64_t autograd_id = 0;
  std::string name;         // from pthread_getname_np, at most 15 bytes
  std::string python_name;  // threading.Thread.name where known
};
// Device type of pinned host memory, for which CUDA has a separate allocator. Part of the file format.
constexpr std::int32_t kPinnedMemory = 1000;

struct Location {
  std::int32_t device_type = 0;                   // c10::DeviceType: 0 cpu, 1 cuda; or kPinnedMemory
  std::int32_t device_index = 0;                  // 0 for devices that have no index
  std::uint64_t stream = 0;                       // as torch reports it: 0 is the default stream
  std::uint64_t pool_first = 0, pool_second = 0;  // MempoolId_t; (0, 0) is the default pool
  auto operator<=>(const Location&) const = default;
};
struct NodeType {
  bool mangled = false;
  std::string name;
};

struct DeviceRecord {
  std::int32_t device_type = 0, device_index = 0;  // as in Location
  std::uint64_t bytes = 0;                         // total memory
  std::string name, uuid, pci_address;             // as nvidia-smi shows them
};

// Container on a referrer path. A size of 100 and a bound of 100 mean that the container is full.
struct ContainerRecord {
  std::string type;          // "deque"
  std::uint64_t length = 0;  // items
  std::uint64_t size = 0;    // the length; for a bound that does not count items, the amount that it limits
  std::uint64_t bound = 0;   // maximum of `size`; 0: none known
  std::uint64_t nones = 0;   // items of a list that are None
};

// Tensors and autograd nodes that one object of the program holds, according to an object scan.
struct HolderRecord {
  std::uint64_t event = 0;                  // number of the next event when the scan began
  std::uint64_t line = 0;                   // current line of the function with the variable; 0: a global
  std::uint64_t count = 0;                  // blocks held
  std::uint64_t bytes = 0;                  // requested bytes of these blocks
  std::string holder;                       // "trainer.predictions (list of 46), local of main() at train.py:31"
  std::string path;                         // to one tensor: "trainer.predictions[...]"
  std::string filename;                     // of that function or global
  std::vector<std::uint64_t> addresses;     // of some of the blocks, ascending
  bool is_garbage = false;                  // an unreachable reference cycle
  std::vector<ContainerRecord> containers;  // on the path, outermost first
  std::uint64_t nodes = 0;                  // autograd nodes held
  bool has_all_nodes = false;               // false: there may be more nodes
  std::uint64_t foreign_bytes = 0;          // of `bytes`: memory that no allocator of torch provided
  std::string name;                         // of the holder alone: "trainer.predictions"
  std::string scope;                        // of the variable: "global", "local", "class attribute"; "" if unknown
  std::string function;                     // that has the local variable: "main"
  std::string through;                      // "autograd graph", "closure"; "": attributes and containers alone
  // Line of the program that stores into the holder; "" and 0 if unknown.
  std::string store_kind;  // "assignment", "addition", "update", "call", "definition", "registration"
  std::string store_filename, store_function;
  std::uint64_t store_line = 0;
  std::uint64_t tensor_bytes = 0;  // of `bytes`: those of the tensors' elements, the rest is kept by views; 0: unknown
  std::string back_reference;      // attribute by which an object of the path is in a cycle: "Node.parent"
  std::string dtype;               // of all the tensors: "float64"; "" if they have several, or unknown
};

// Process that the program, or one of its children, has started. A later record of the process replaces the command.
struct ChildRecord {
  std::uint64_t event = 0;  // number of the next event when the process was found
  std::uint64_t process_id = 0, parent_id = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot: with the process id, identifies the process
  std::string command;           // arguments, separated by zero bytes
};

// Append one record to `out`.
void put_string(Bytes& out, std::uint32_t id, std::string_view text);
void put_code(Bytes& out, std::uint32_t id, const Code& code);
void put_frame(Bytes& out, std::uint32_t id, const FrameRecord& frame);
void put_thread(Bytes& out, std::uint32_t id, const ThreadRecord& thread);
void put_thread_name(Bytes& out, std::uint32_t id, std::string_view name);
void put_location(Bytes& out, std::uint32_t id, const Location& location);
void put_node_type(Bytes& out, std::uint32_t id, const NodeType& type);
void put_source_line(Bytes& out, std::uint32_t filename, std::uint32_t line, std::string_view text);
void put_device(Bytes& out, const DeviceRecord& device);
void put_library_block(Bytes& out, std::uint64_t event, std::uint64_t address, std::string_view name);
void put_holder(Bytes& out, const HolderRecord& holder);
void put_module(Bytes& out, std::uint32_t id, const ModuleRecord& module);
void put_child(Bytes& out, const ChildRecord& child);

// Meaning of a stack id: a stack of frames, or a synthetic stack for memory that no Python line allocated.
struct StackOrigin {
  // The values are part of the compacted format.
  enum class Kind : std::uint8_t {
    kFrames = 0,           // index: id of the innermost frame; 0: no stack
    kBeforeRecording = 1,  // blocks older than the recording
    kLibrary = 2,          // a library's internal blocks ("cuBLAS workspace"); index: in Definitions::library_names()
    kNode = 3,             // allocations by autograd nodes without a Python line; index: node type
  };
  Kind kind = Kind::kFrames;
  std::uint32_t index = 0;
};

// All definitions of a trace, by id from 1. Entry 0, and an id whose definition was lost, is an empty record.
class Definitions {
 public:
  // After fix_synthetic_stacks(): the first synthetic stack, above all frame ids, and the maximum number of libraries.
  static constexpr std::uint32_t kFixedSyntheticStack = std::uint32_t{1} << 31, kMaxLibraries = 1 << 16;

  // Add complete records. Throws DecodeError at the first invalid one; the records before it stay.
  void add(const std::uint8_t* records, std::size_t size);
  // Pass each frame from now on to `consume` instead of storing it. The code of the frame is defined by then.
  void forward_frames_to(std::function<void(const FrameRecord&)> consume) { frame_consumer_ = std::move(consume); }

  const std::string& string(std::uint32_t id) const { return at(strings_, id); }
  const Code& code(std::uint32_t id) const { return at(codes_, id); }
  const FrameRecord& frame(std::uint32_t id) const { return at(frames_, id); }
  const ThreadRecord& thread(std::uint32_t id) const { return at(threads_, id); }
  const Location& location(std::uint32_t id) const { return at(locations_, id); }
  const NodeType& node_type(std::uint32_t id) const { return at(node_types_, id); }
  const ModuleRecord& module(std::uint32_t id) const { return at(modules_, id); }

  // Set ids of an event that have no definition to 0, so that callers can index with them unchecked.
  void clear_undefined_ids(Event& event) const {
    if (event.stack >= frames_.size()) event.stack = 0;
    if (event.location >= locations_.size()) event.location = 0;
    if (event.node_type >= node_types_.size()) event.node_type = 0;
  }

  std::size_t frame_count() const { return frames_.size(); }
  std::size_t thread_count() const { return threads_.size(); }
  std::size_t location_count() const { return locations_.size(); }
  std::size_t node_type_count() const { return node_types_.size(); }
  std::size_t module_count() const { return modules_.size(); }

  // Return the origin of a stack id, which may have no definition. Ids of synthetic stacks follow those of all frames.
  StackOrigin origin_of(std::uint32_t stack) const {
    const std::uint32_t older = first_synthetic_stack();
    if (stack < older) return {StackOrigin::Kind::kFrames, stack};
    if (stack == older) return {StackOrigin::Kind::kBeforeRecording};
    if (stack - older <= library_names_.size()) return {StackOrigin::Kind::kLibrary, stack - older - 1};
    return {StackOrigin::Kind::kNode, stack - first_node_stack()};
  }
  // Return the stack id of an origin; 0 if its definition is missing.
  std::uint32_t stack_of(StackOrigin origin) const {
    switch (origin.kind) {
      case StackOrigin::Kind::kFrames:
        return origin.index < frames_.size() ? origin.index : 0;
      case StackOrigin::Kind::kBeforeRecording:
        return first_synthetic_stack();
      case StackOrigin::Kind::kLibrary:
        return origin.index < library_names_.size() ? first_synthetic_stack() + 1 + origin.index : 0;
      case StackOrigin::Kind::kNode:
        return origin.index != 0 && origin.index < node_types_.size() ? first_node_stack() + origin.index : 0;
    }
    return 0;
  }
  // Number synthetic stacks from kFixedSyntheticStack on, so that their ids stay the same while definitions are added.
  void fix_synthetic_stacks() { has_fixed_stacks_ = true; }
  const std::vector<std::string>& library_names() const { return library_names_; }
  // Return event, address and synthetic stack of each internal block of a library.
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>> library_blocks() const {
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>> blocks;
    for (const auto& [block, name] : library_blocks_)
      blocks.emplace_back(block.first, block.second, stack_of({StackOrigin::Kind::kLibrary, name}));
    return blocks;
  }
  // Return the synthetic stack of a library's internal block, 0 for any other. event: as in kLibraryBlock.
  std::uint32_t library_stack(std::uint64_t event, std::uint64_t address) const {
    // Reject most of the millions of allocations by one bit: few belong to a library.
    if ((library_events_ >> (event & 63) & 1) == 0) return 0;
    const auto block = library_blocks_.find({event, address});
    return block == library_blocks_.end() ? 0 : stack_of({StackOrigin::Kind::kLibrary, block->second});
  }

  // Return the devices that the trace describes, by type and index; devices that occur only in events are absent.
  const std::map<std::pair<std::int32_t, std::int32_t>, DeviceRecord>& devices() const { return devices_; }

  // Return the results of object scans, in the order of the file.
  const std::vector<HolderRecord>& holders() const { return holders_; }

  // Return the processes started by the program, in the order in which they were found.
  const std::vector<ChildRecord>& children() const { return children_; }

  // Return the line that a frame was executing, 0 if its definition is missing; lines(): of all frames, by id.
  std::int32_t line(std::uint32_t frame) const { return line_of(this->frame(frame)); }
  std::int32_t line_of(const FrameRecord& frame) const;
  std::vector<std::int32_t> lines() const;
  // Return the source text of (filename string id, line), nullptr if the trace has none.
  const std::string* source(std::uint32_t filename, std::int32_t line) const;
  const std::map<std::pair<std::uint32_t, std::uint32_t>, std::string>& sources() const { return sources_; }

  // Return all definitions as records, but only the holders of scans from event `holders_since` on.
  Bytes records(std::uint64_t holders_since = 0) const;

  // Reject ids above what files of `bytes` can define: ids are consecutive, and a record has at least four bytes.
  void limit_ids(std::uint64_t bytes);
  // Truncate stacks deeper than kMaxStackDepth, once all definitions are read. Return false if any was deeper.
  bool limit_depth();

 private:
  template <typename T>
  T& slot(std::vector<T>& table, std::uint32_t id);
  template <typename T>
  static const T& at(const std::vector<T>& table, std::uint32_t id) {
    static const T missing{};
    return id < table.size() ? table[id] : missing;
  }
  void add_record(DefinitionType type, ByteReader& fields);
  void add_string(ByteReader& fields);
  void add_code(ByteReader& fields);
  void add_frame(ByteReader& fields);
  void add_thread(ByteReader& fields);
  void add_thread_name(ByteReader& fields);
  void add_location(ByteReader& fields);
  void add_node_type(ByteReader& fields);
  void add_source_line(ByteReader& fields);
  void add_device(ByteReader& fields);
  void add_library_block(ByteReader& fields);
  void add_holder(ByteReader& fields);
  void add_module(ByteReader& fields);
  void add_child(ByteReader& fields);
  std::uint32_t first_synthetic_stack() const {
    if (has_fixed_stacks_) return kFixedSyntheticStack;
    return static_cast<std::uint32_t>(frames_.empty() ? 1 : frames_.size());
  }
  // Return the id that node type 0, which has no stack, would have.
  std::uint32_t first_node_stack() const {
    const std::size_t libraries = has_fixed_stacks_ ? kMaxLibraries : library_names_.size();
    return first_synthetic_stack() + 1 + static_cast<std::uint32_t>(libraries);
  }

  std::function<void(const FrameRecord&)> frame_consumer_;
  std::uint32_t max_id_ = UINT32_MAX - 1;
  bool has_fixed_stacks_ = false;
  std::vector<std::string> strings_;
  std::vector<Code> codes_;
  std::vector<FrameRecord> frames_;
  std::vector<ThreadRecord> threads_;
  std::vector<Location> locations_;
  std::vector<NodeType> node_types_;
  std::vector<ModuleRecord> modules_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> sources_;
  std::map<std::pair<std::int32_t, std::int32_t>, DeviceRecord> devices_;  // by type and index
  std::vector<HolderRecord> holders_;
  std::set<std::tuple<std::uint64_t, std::string, std::string, std::uint64_t>> holder_keys_;
  std::vector<ChildRecord> children_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> child_rows_;  // by process id and start time
  std::set<std::pair<std::int32_t, std::int32_t>> devices_of_locations_;
  std::vector<std::string> library_names_;
  std::map<std::string, std::uint32_t> library_numbers_;                             // by name
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> library_blocks_;  // names, by event and address
  std::uint64_t library_events_ = 0;  // bit n: some event number of library_blocks_ is n modulo 64
};

}  // namespace alloctrace
