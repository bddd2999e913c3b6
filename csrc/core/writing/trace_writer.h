// Writer of a complete trace from events that another tool recorded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../format/definitions.h"
#include "../format/event_codec.h"
#include "../format/trace_file.h"

namespace alloctrace {

class TraceWriter {
 public:
  // Event times: ns since 1970, from begin_ns on. A file at `path` stays until finish(). Throws TraceFileError.
  TraceWriter(const std::string& path, bool overwrite, std::uint64_t begin_ns, std::string header_json);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Return an id for events, the same for equal definitions. A frame's `parent` is its caller, 0: none.
  std::uint32_t string(std::string_view text);
  std::uint32_t location(const Location& location);
  std::uint32_t frame(const FrameRecord& frame);
  std::uint32_t thread(const std::string& name);
  std::uint32_t node_type(const std::string& name);
  // Return a new id at each call.
  std::uint32_t code(std::string_view name, std::string_view filename, std::int32_t first_line, LineTableKind kind,
                     std::string_view line_table);
  // Name the block that event number `event` allocates: a library's own.
  void library_block(std::uint64_t event, std::uint64_t address, std::string_view name);

  // Append the next event. Throws TraceFileError.
  void push(const Event& event);
  // End the trace and publish it at its path. Throws TraceFileError.
  void finish(std::string_view end_json);

 private:
  void write_events();
  template <typename Payload>
  void append(BlockType type, const Payload& payload, std::uint64_t event_count = 0);

  TraceFile file_;
  std::string header_json_;
  ClockAnchor latest_;
  Bytes definitions_, dictionary_;  // not yet written; all
  EventEncoder encoder_;
  std::vector<Event> events_;
  std::uint64_t written_ = 0, dictionary_at_ = 0;
  bool is_finished_ = false;

  std::map<std::string, std::uint32_t> strings_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> frames_;
  std::map<std::string, std::uint32_t> threads_, node_types_;
  std::uint32_t codes_ = 0;
  std::map<Location, std::uint32_t> locations_;
};

}  // namespace alloctrace
