#include "folded_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "../format/event_codec.h"

namespace alloctrace {
namespace {

constexpr std::size_t kCopied = std::size_t{1} << 20;

[[noreturn]] void fail(const TraceFile& file) {
  throw TraceFileError("cannot write the trace " + file.path() + ": " + std::strerror(errno));
}

std::string_view view(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

void write_folded(TraceFile& file, const TraceReader& trace, const FoldedPart& part, const InputFile& source,
                  std::uint64_t end) {
  const ClockAnchor& begin = trace.first_anchor();
  const auto append = [&](BlockType type, std::string_view payload) {
    BlockHeader header{};
    header.type = type;
    header.end = begin;
    header.counters = trace.integrity().counters;
    if (type == BlockType::kFold) {
      header.first_sequence = part.summary.until;
      header.end = part.end;
    }
    if (!file.append_from(begin, header, payload)) fail(file);
  };
  append(BlockType::kHeader, trace.header_json());
  append(BlockType::kDictionary, view(part.dictionary));
  Bytes fold;
  part.summary.put(fold);
  fold.insert(fold.end(), part.payload.begin(), part.payload.end());
  append(BlockType::kFold, view(fold));
  if (part.cut.event_count != 0) {
    std::vector<Event> events;
    try {
      trace.decode(part.cut, events);
    } catch (const DecodeError&) {
      events.clear();  // a faulty writer made it; its numbers are missing then
    }
    const std::uint64_t folded = part.summary.until - part.cut.first_sequence;
    if (events.size() > folded) {
      EventEncoder encoder;
      BlockHeader header{};
      header.type = BlockType::kEvents;
      header.first_sequence = part.summary.until;
      header.event_count = events.size() - folded;
      header.end = part.cut.end;
      header.counters = trace.integrity().counters;
      const std::span<const Event> rest = std::span<const Event>(events).subspan(folded);
      if (!file.append_from(part.cut.begin, header, view(encoder.encode(rest, {}, part.cut.begin.counter)))) fail(file);
    }
  }
  Bytes some;
  for (std::uint64_t at = part.copied_from; at < end; at += some.size()) {
    some.resize(std::min<std::uint64_t>(kCopied, end - at));
    if (!source.read(some.data(), some.size(), at)) {
      throw OpenError(trace.path() + " was cut short while it was read: read it again");
    }
    if (!file.append_raw(view(some))) fail(file);
  }
}

FoldedTrace fold_trace(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until, const std::string& out,
                       bool overwrite, std::pair<std::uint64_t, std::uint64_t> nodes_at_begin,
                       const FoldProgress& progress) {
  if (trace->spool()) {
    throw FoldingError("the end of " + trace->path() +
                       " is in its spool: it can be compacted when its recording has ended; " +
                       "one that was killed is ended by `finish`");
  }
  if (until <= trace->folded_until()) {
    throw FoldingError(trace->folded_until() == 0
                           ? "there is nothing to compact: no event comes before that position"
                           : trace->path() + " is compacted up to event " + std::to_string(trace->folded_until() - 1) +
                                 " already: give a later position");
  }
  if (!overwrite) TraceFile::refuse_existing(out);
  const FoldedPart part = fold_until(trace, until, nodes_at_begin, progress);
  TraceFile file(out, overwrite, trace->session_id(), trace->first_anchor(), kFoldedFormatVersion);
  try {
    write_folded(file, *trace, part, trace->file(), trace->file_bytes());
    file.publish();
  } catch (...) {
    file.remove();
    throw;
  }
  return {part.summary.events, until, trace->file_bytes(), file.bytes()};
}

}  // namespace alloctrace
