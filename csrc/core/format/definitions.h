// What the ids in events stand for: strings, code objects, frames, threads, locations, node types, source lines.
//
// Each is defined once, by a record `varint byte count | type | fields`, before the first event that names it. Records
// are idempotent: reading one twice changes nothing, so a trace can repeat all of them.
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
#include "line_table.h"

namespace alloctrace {

// Fields are varints in the order written here; `text` is a varint byte count and UTF-8 bytes.
enum class DefinitionType : std::uint8_t {
  kString = 1,  // id, text
  kCode = 2,    // id, name string, qualified name string, filename string, zigzag first line, table kind, table bytes
  kFrame = 3,   // id, parent frame (0: outermost), code, instruction byte offset, module that is called (absent: none)
  kThread = 4,  // id, native thread id, autograd (RecordFunction) thread id, name text as the system has it
  kThreadName = 5,     // thread id, name text as Python has it
  kLocation = 6,       // id, device type (c10::DeviceType), device index, stream, first and second number of the pool
  kNodeType = 7,       // id, 1 if the name is a mangled C++ type name, name text
  kSourceLine = 8,     // filename string, line number, text of that line
  kDevice = 9,         // device type, device index, bytes, name text, UUID text, PCI address text
  kLibraryBlock = 10,  // event number of its alloc (of the allocator state, if it is older), address, name text
  kModule = 11,        // id, class name string, module that holds it (0: none), its name there string (0: unknown)
  kHolder = 13,  // see HolderRecord: event, line, count, bytes, holder text, path text, file text, number of addresses,
                 // zigzag difference of each to the one before, 1 if garbage (not in older traces)
};

struct Code {
  std::uint32_t name = 0, qualified_name = 0, filename = 0;  // string ids
  std::int32_t first_line = 0;
  LineTableKind line_table_kind = LineTableKind::kNone;
  std::string line_table;
};
struct FrameRecord {
  std::uint32_t parent = 0, code = 0, instruction = 0;
  std::uint32_t module = 0;  // the one that this frame calls
  bool operator==(const FrameRecord&) const = default;
};
// An instance of torch.nn.Module, or several of one class that cannot be told apart. Its record may come again: what
// holds it is known only after the first events of it.
struct ModuleRecord {
  std::uint32_t class_name = 0;  // string ids
  std::uint32_t owner = 0;       // the module that holds it; 0: none does, or it is not known
  std::uint32_t name = 0;        // how its owner calls it; without an owner, how it is called itself; 0: unknown
};
struct ThreadRecord {
  std::uint64_t native_id = 0;
  std::uint64_t autograd_id = 0;
  std::string name;         // as the system has it: pthread_getname_np, 15 bytes
  std::string python_name;  // threading.Thread.name where known
};
// Instead of a c10::DeviceType: pinned host memory, which torch allocates for CUDA by an allocator of its own. Part of
// the file format.
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
  std::uint64_t bytes = 0;                         // its memory, all of it
  std::string name, uuid, pci_address;             // as nvidia-smi shows them
};

// Tensors that one object of the program holds, as a look at its objects found them.
struct HolderRecord {
  std::uint64_t event = 0;  // the number of the next event when the look began
  std::uint64_t line = 0;   // where the function that has the variable was; 0: a global one
  std::uint64_t count = 0;  // pieces of memory that it holds
  std::uint64_t bytes = 0;  // requested bytes of them
  std::string holder;       // "Trainer.predictions (list of 46) in trainer, local of main() at train.py:31"
  std::string path;         // to one of them: "trainer.predictions[...]"
  std::string filename;     // of that function or global
  std::vector<std::uint64_t> addresses;  // of some of them, ascending
  bool is_garbage = false;               // a reference cycle to which nothing of the program leads
};

// One record each, appended to `out`.
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

// All definitions of a trace. Ids count from 1 and lead into vectors; entry 0, and any id whose definition was lost to
// damage, is an empty record.
class Definitions {
 public:
  // See expect_more(). No id of a frame is as high, nor are there as many libraries.
  static constexpr std::uint32_t kFarStacks = std::uint32_t{1} << 31, kFarLibraries = 1 << 16;

  // Takes in a run of whole records. Throws DecodeError at the first that makes no sense, keeping those before it.
  void add(const std::uint8_t* records, std::size_t size);
  // For whoever keeps the frames elsewhere: from now on `take` is called for each, with its code defined.
  void leave_frames_to(std::function<void(const FrameRecord&)> take) { frames_elsewhere_ = std::move(take); }

  const std::string& string(std::uint32_t id) const { return at(strings_, id); }
  const Code& code(std::uint32_t id) const { return at(codes_, id); }
  const FrameRecord& frame(std::uint32_t id) const { return at(frames_, id); }
  const ThreadRecord& thread(std::uint32_t id) const { return at(threads_, id); }
  const Location& location(std::uint32_t id) const { return at(locations_, id); }
  const NodeType& node_type(std::uint32_t id) const { return at(node_types_, id); }
  const ModuleRecord& module(std::uint32_t id) const { return at(modules_, id); }

  std::size_t frame_count() const { return frames_.size(); }
  std::size_t thread_count() const { return threads_.size(); }
  std::size_t location_count() const { return locations_.size(); }
  std::size_t node_type_count() const { return node_types_.size(); }
  std::size_t module_count() const { return modules_.size(); }

  // Stacks that stand for what no line of Python explains: their ids follow those of the frames.
  // Of blocks that were there before the recording.
  std::uint32_t stack_before_recording() const {
    if (expects_more_) return kFarStacks;
    return static_cast<std::uint32_t>(frames_.empty() ? 1 : frames_.size());
  }
  // For whoever uses stacks while more definitions come: those that stand for something are far behind those of frames,
  // and stay there.
  void expect_more() { expects_more_ = true; }
  // Of blocks that a library keeps for itself ("cuBLAS workspace"), by number in library_names().
  std::uint32_t stack_of_library(std::uint32_t name) const { return stack_before_recording() + 1 + name; }
  bool is_stack_of_library(std::uint32_t stack) const {
    return stack >= stack_of_library(0) && stack < stack_of_library(static_cast<std::uint32_t>(library_names_.size()));
  }
  // Of what autograd's nodes of this type allocated, where neither a stack nor the line of forward is known.
  // 0 for no node.
  std::uint32_t stack_of_node(std::uint16_t node_type) const {
    if (node_type == 0 || node_type >= node_types_.size()) return 0;
    return stack_of_library(expects_more_ ? kFarLibraries : static_cast<std::uint32_t>(library_names_.size())) +
           node_type;
  }
  const std::vector<std::string>& library_names() const { return library_names_; }
  // Event and address of each block that a library keeps for itself, and the stack that stands for it.
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>> library_blocks() const {
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>> blocks;
    for (const auto& [block, name] : library_blocks_)
      blocks.emplace_back(block.first, block.second, stack_of_library(name));
    return blocks;
  }
  // The stack of a block that a library keeps for itself; 0 for all others. event: as in kLibraryBlock.
  std::uint32_t library_stack(std::uint64_t event, std::uint64_t address) const {
    // A few blocks among millions of allocations: most are rejected by one bit.
    if ((library_events_ >> (event & 63) & 1) == 0) return 0;
    const auto found = library_blocks_.find({event, address});
    return found == library_blocks_.end() ? 0 : stack_of_library(found->second);
  }

  // Those that the trace describes, in the order of their index; a device that only its events name is not among them.
  const std::map<std::pair<std::int32_t, std::int32_t>, DeviceRecord>& devices() const { return devices_; }

  // In the order in which they were written.
  const std::vector<HolderRecord>& holders() const { return holders_; }

  // The line that a frame was executing; 0 where its definition is missing. lines(): of all of them, by id.
  std::int32_t line(std::uint32_t frame) const { return line_of(this->frame(frame)); }
  std::int32_t line_of(const FrameRecord& frame) const;
  std::vector<std::int32_t> lines() const;
  // Source text of (filename string id, line), nullptr where the trace has none.
  const std::string* source(std::uint32_t filename, std::int32_t line) const;
  const std::map<std::pair<std::uint32_t, std::uint32_t>, std::string>& sources() const { return sources_; }

  // All of them again, as records; of the holders those that an event below `holders_since` does not precede.
  Bytes records(std::uint64_t holders_since = 0) const;

  // Ids are given out one after the other, and the shortest record that defines one has four bytes. `bytes`: of the
  // files that the definitions are read from. An id beyond what they could define is damage.
  void limit_ids(std::uint64_t bytes);
  // Once all are read. Cuts stacks that are deeper than any can be; false where there was one.
  bool limit_depth();

 private:
  template <typename T>
  T& slot(std::vector<T>& table, std::uint32_t id);
  template <typename T>
  static const T& at(const std::vector<T>& table, std::uint32_t id) {
    static const T missing{};
    return id < table.size() ? table[id] : missing;
  }
  void add_record(DefinitionType type, ByteReader fields);

  std::function<void(const FrameRecord&)> frames_elsewhere_;
  std::uint32_t highest_id_ = UINT32_MAX - 1;
  bool expects_more_ = false;
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
  std::set<std::tuple<std::uint64_t, std::string, std::string, std::uint64_t>> known_holders_;
  std::set<std::pair<std::int32_t, std::int32_t>> devices_of_locations_;
  std::vector<std::string> library_names_;
  std::map<std::string, std::uint32_t> library_numbers_;                             // by name
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> library_blocks_;  // names, by event and address
  std::uint64_t library_events_ = 0;  // bit n: one of these events has a number that is n modulo 64
};

}  // namespace alloctrace
