// Writes a whole trace of events that are known already, from what another tool recorded.
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
  // Times of events are nanoseconds since 1970, from begin_ns on. What there was at `path` stays until finish(), and
  // for good if that is not called. Throws TraceFileError.
  TraceWriter(const std::string& path, bool overwrite, std::uint64_t begin_ns, std::string header_json);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Ids for events; the same for the same thing.
  std::uint32_t string(std::string_view text);
  std::uint32_t location(const Location& location);
  // A frame that `parent` (0: none) called.
  std::uint32_t frame(const FrameRecord& frame);
  // A thread by its name.
  std::uint32_t thread(const std::string& name);
  // Ids of what is new at each call.
  std::uint32_t code(std::string_view name, std::string_view filename, std::int32_t first_line, LineTableKind kind,
                     std::string_view line_table);

  // The next event. Throws TraceFileError.
  void push(const Event& event);
  // Ends the trace and puts it in its place. Throws TraceFileError.
  void finish(std::string_view end_json);

 private:
  void write_events();
  template <typename Payload>
  void append(BlockType type, const Payload& payload, std::uint64_t event_count = 0);

  TraceFile file_;
  std::string header_json_;
  ClockAnchor latest_;
  Bytes definitions_, dictionary_;  // those not written yet; all
  EventEncoder encoder_;
  std::vector<Event> events_;
  std::uint64_t written_ = 0, dictionary_at_ = 0;
  bool is_finished_ = false;

  std::map<std::string, std::uint32_t> strings_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> frames_;
  std::map<std::string, std::uint32_t> threads_;
  std::uint32_t codes_ = 0;
  std::map<Location, std::uint32_t> locations_;
};

}  // namespace alloctrace
