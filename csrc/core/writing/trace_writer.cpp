#include "trace_writer.h"

#include <cerrno>
#include <cstring>
#include <random>

namespace alloctrace {
namespace {

// As in recording/writer.cpp, so that readers get blocks of the usual size.
constexpr std::size_t kBlockEvents = 65'536;
constexpr std::uint64_t kDictionaryEveryBytes = std::uint64_t{256} << 20;

struct SessionId {
  std::uint8_t bytes[16];
};

SessionId make_random_id() {
  SessionId id;
  std::random_device random;
  for (std::uint8_t& byte : id.bytes) byte = static_cast<std::uint8_t>(random());
  return id;
}

// Return the id of a key, counted from 1, and whether it is new.
template <typename Map, typename Key>
std::pair<std::uint32_t, bool> assign_id(Map& ids, Key&& key) {
  const auto [entry, is_new] = ids.try_emplace(std::forward<Key>(key), static_cast<std::uint32_t>(ids.size() + 1));
  return {entry->second, is_new};
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path, bool overwrite, std::uint64_t begin_ns, std::string header_json)
    : file_(path, overwrite, make_random_id().bytes, {begin_ns, begin_ns, begin_ns}),
      header_json_(std::move(header_json)),
      latest_{begin_ns, begin_ns, begin_ns} {
  try {
    append(BlockType::kHeader, header_json_);
  } catch (...) {
    file_.remove();
    throw;
  }
}

TraceWriter::~TraceWriter() {
  if (!is_finished_) file_.remove();
}

std::uint32_t TraceWriter::string(std::string_view text) {
  const auto [id, is_new] = assign_id(strings_, std::string(text));
  if (is_new) put_string(definitions_, id, text);
  return id;
}

std::uint32_t TraceWriter::location(const Location& location) {
  const auto [id, is_new] = assign_id(locations_, location);
  if (is_new) put_location(definitions_, id, location);
  return id;
}

std::uint32_t TraceWriter::frame(const FrameRecord& frame) {
  const auto [id, is_new] = assign_id(frames_, std::tuple(frame.parent, frame.code, frame.instruction));
  if (is_new) put_frame(definitions_, id, frame);
  return id;
}

std::uint32_t TraceWriter::thread(const std::string& name) {
  const auto [id, is_new] = assign_id(threads_, name);
  if (is_new) put_thread(definitions_, id, {0, 0, name, {}});
  return id;
}

std::uint32_t TraceWriter::node_type(const std::string& name) {
  const auto [id, is_new] = assign_id(node_types_, name);
  if (is_new) put_node_type(definitions_, id, {false, name});
  return id;
}

void TraceWriter::library_block(std::uint64_t event, std::uint64_t address, std::string_view name) {
  put_library_block(definitions_, event, address, name);
}

std::uint32_t TraceWriter::code(std::string_view name, std::string_view filename, std::int32_t first_line,
                                LineTableKind kind, std::string_view line_table) {
  Code code;
  code.name = string(name);
  code.filename = string(filename);
  code.first_line = first_line;
  code.line_table_kind = kind;
  code.line_table = line_table;
  put_code(definitions_, ++codes_, code);
  return codes_;
}

void TraceWriter::push(const Event& event) {
  events_.push_back(event);
  if (events_.size() == kBlockEvents) write_events();
}

void TraceWriter::write_events() {
  if (!definitions_.empty()) {
    append(BlockType::kDefinitions, definitions_);
    dictionary_.insert(dictionary_.end(), definitions_.begin(), definitions_.end());
    definitions_.clear();
  }
  if (events_.empty()) return;
  for (const Event& event : events_) {
    if (event.time > latest_.counter) latest_ = {event.time, event.time, event.time};
  }
  append(BlockType::kEvents, encoder_.encode(events_, {}, file_.next_begin().counter), events_.size());
  written_ += events_.size();
  events_.clear();
  if (file_.bytes() - dictionary_at_ < kDictionaryEveryBytes) return;
  append(BlockType::kHeader, header_json_);
  append(BlockType::kDictionary, dictionary_);
  dictionary_at_ = file_.bytes();
}

void TraceWriter::finish(std::string_view end_json) {
  write_events();
  append(BlockType::kHeader, header_json_);
  append(BlockType::kDictionary, dictionary_);
  append(BlockType::kEnd, end_json);
  file_.publish();
  is_finished_ = true;
}

template <typename Payload>
void TraceWriter::append(BlockType type, const Payload& payload, std::uint64_t event_count) {
  BlockHeader header{};
  header.type = type;
  header.first_sequence = written_;
  header.event_count = event_count;
  header.end = latest_;
  if (!file_.append(header, payload)) {
    throw TraceFileError("cannot write the trace " + file_.path() + ": " + std::strerror(errno));
  }
}

}  // namespace alloctrace
