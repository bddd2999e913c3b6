#include "compacted_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "../format/event_codec.h"

namespace alloctrace {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

[[noreturn]] void fail(const TraceFile& file) {
  throw TraceFileError("cannot write the trace " + file.path() + ": " + std::strerror(errno));
}

std::string_view view(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

void write_compacted(TraceFile& file, const TraceReader& trace, const CompactedPart& part, const InputFile& source,
                     std::uint64_t end) {
  const ClockAnchor& begin = trace.first_anchor();
  const auto append = [&](BlockType type, std::string_view payload) {
    BlockHeader header{};
    header.type = type;
    header.end = begin;
    header.counters = trace.integrity().counters;
    if (type == BlockType::kCompacted) {
      header.first_sequence = part.summary.until;
      header.end = part.end;
    }
    if (!file.append_with_begin(begin, header, payload)) fail(file);
  };
  append(BlockType::kHeader, trace.header_json());
  append(BlockType::kDictionary, view(part.dictionary));
  Bytes payload;
  part.summary.put(payload);
  payload.insert(payload.end(), part.payload.begin(), part.payload.end());
  append(BlockType::kCompacted, view(payload));
  if (part.split_chunk.event_count != 0) {
    std::vector<Event> events;
    try {
      trace.decode(part.split_chunk, events);
    } catch (const DecodeError&) {
      events.clear();  // invalid block of a faulty writer: its events count as missing
    }
    const std::uint64_t compacted = part.summary.until - part.split_chunk.first_sequence;
    if (events.size() > compacted) {
      EventEncoder encoder;
      BlockHeader header{};
      header.type = BlockType::kEvents;
      header.first_sequence = part.summary.until;
      header.event_count = events.size() - compacted;
      header.end = part.split_chunk.end;
      header.counters = trace.integrity().counters;
      const std::span<const Event> remaining = std::span<const Event>(events).subspan(compacted);
      if (!file.append_with_begin(part.split_chunk.begin, header,
                                  view(encoder.encode(remaining, {}, part.split_chunk.begin.counter))))
        fail(file);
    }
  }
  Bytes buffer;
  for (std::uint64_t at = part.copy_offset; at < end; at += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(kCopyBytes, end - at));
    if (!source.read(buffer.data(), buffer.size(), at)) {
      throw OpenError(trace.path() + " was cut short while it was read: read it again");
    }
    if (!file.append_raw(view(buffer))) fail(file);
  }
}

CompactedTrace compact_trace(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until,
                             const std::string& out, bool overwrite,
                             std::pair<std::uint64_t, std::uint64_t> nodes_at_begin,
                             const CompactionProgress& progress) {
  if (trace->spool()) {
    throw CompactionError("the end of " + trace->path() +
                          " is in its spool: it can be compacted when its recording has ended; " +
                          "one that was killed is ended by `finish`");
  }
  if (until <= trace->compacted_until()) {
    throw CompactionError(trace->compacted_until() == 0
                              ? "there is nothing to compact: no event comes before that position"
                              : trace->path() + " is compacted up to event " +
                                    std::to_string(trace->compacted_until() - 1) + " already: give a later position");
  }
  if (!overwrite) TraceFile::refuse_existing(out);
  const CompactedPart part = compact_until(trace, until, nodes_at_begin, progress);
  TraceFile file(out, overwrite, trace->session_id(), trace->first_anchor(), kCompactedFormatVersion);
  try {
    write_compacted(file, *trace, part, trace->file(), trace->file_bytes());
    file.publish();
  } catch (...) {
    file.remove();
    throw;
  }
  return {part.summary.events, until, trace->file_bytes(), file.bytes()};
}

}  // namespace alloctrace
