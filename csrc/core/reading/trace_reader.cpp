#include "trace_reader.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "../base/crc32.h"
#include "../format/event_codec.h"
#include "block_reading.h"

namespace alloctrace {
namespace {

constexpr std::size_t kScanWindow = std::size_t{1} << 20;
constexpr std::uint64_t kHeaderSearchBytes = std::uint64_t{16} << 20;

}  // namespace

std::uint64_t Integrity::lost() const {
  return std::accumulate(std::begin(counters.lost), std::end(counters.lost), std::uint64_t{0});
}

const char* Integrity::state() const {
  if (corrupt_blocks > 0) return "corrupt";
  if (lost() > 0 || missing_events > 0) return "gaps";
  if (!ended && !spool_read) return "truncated";
  return "complete";
}

TraceReader::TraceReader(const std::string& path, const std::string& spool_path,
                         const std::function<void(double)>& progress, const PathsOfHeader& paths_of_header,
                         std::uint64_t end)
    : path_(path), file_(path) {
  if (!file_.is_open()) throw OpenError("cannot open " + path + ": " + file_.error_text());
  std::uint64_t first_block = 0;
  // Read the spool before the blocks: events that a running recording moves to the file in between are then in both.
  do {
    integrity_ = {};
    damaged_parts_.clear();
    read_file_header(first_block);
    if (end != UINT64_MAX) break;
    spool_path_ = spool_path.empty() ? path + ".spool" : spool_path;
    spool_ = read_spool(spool_path_, session_id_);
    if (!spool_ && spool_path.empty() && paths_of_header) {
      BlockHeader header;
      if (read_block_header(file_, first_block, header) && header.type == BlockType::kHeader &&
          header.payload_bytes <= file_.size()) {
        std::string json(header.payload_bytes, '\0');
        if (file_.read(json.data(), json.size(), first_block + sizeof header)) {
          const RecordedPaths recorded = paths_of_header(json);
          spool_path_ = recorded.spool;
          recorded_path_ = recorded.trace;
          spool_ = read_spool(spool_path_, session_id_);
        }
      }
    }
    // If a running recording has replaced the file by a compacted one, the old file ends before the spool begins.
  } while (file_.reopen_if_replaced(path));
  file_.refresh_size();
  file_.limit_size(end);
  definitions_.limit_ids(file_.size() + (spool_ ? spool_->definitions.size() : 0));
  integrity_.spool_read = spool_.has_value();
  complete_bytes_ = file_.size();
  scan_blocks(first_block, progress);
  last_anchor_of_file_ = last_anchor_;
  if (spool_) add_spool();
  if (!definitions_.limit_depth()) ++integrity_.corrupt_blocks;
  if (corrupt_end_ > next_sequence_) integrity_.missing_events += corrupt_end_ - next_sequence_;
  if (last_anchor_.counter > first_anchor_.counter) {
    slope_ = static_cast<double>(last_anchor_.monotonic_ns - first_anchor_.monotonic_ns) /
             static_cast<double>(last_anchor_.counter - first_anchor_.counter);
  }
  begin_ns_ = static_cast<std::int64_t>(first_anchor_.wall_ns);
  end_ns_ = first_anchor_.wall_ns + (last_anchor_.monotonic_ns - first_anchor_.monotonic_ns);
  extend_end_to_spool();
}

// Move the end time to the last event of the spool, which is later than the last anchor.
void TraceReader::extend_end_to_spool() {
  constexpr std::int64_t kMaxSpoolDelay = std::int64_t{86400} * 1'000'000'000;  // ns; a later event is corrupt
  const std::int64_t file_end_ns = end_ns_;
  for (const Chunk& chunk : chunks_) {
    if (chunk.spool_run == SIZE_MAX || chunk.event_count == 0) continue;
    const std::int64_t last = clock_of(chunk).wall_ns(spool_->runs[chunk.spool_run].events.back().time);
    if (last > end_ns_ && last - file_end_ns < kMaxSpoolDelay) end_ns_ = last;
  }
}

void TraceReader::read_file_header(std::uint64_t& first_block) {
  FileHeader header{};
  const std::uint64_t available = std::min<std::uint64_t>(file_.size(), sizeof header);
  file_.read(&header, available, 0);
  std::memcpy(session_id_, header.session_id, sizeof session_id_);
  first_block = sizeof header;
  const bool has_magic = std::memcmp(header.magic, kFileMagic, std::min<std::uint64_t>(available, 8)) == 0;
  if (available < sizeof header) {
    // A prefix of the magic, or an empty file, is a truncated trace. Other short files are not traces.
    if (!has_magic) throw FormatError(path_ + " is not an alloctrace trace");
    integrity_.truncated_bytes = available;
    return;
  }
  if (is_valid(header)) return check_version(header, path_);
  // The header may be corrupt: the file is a trace if a block follows. Only the beginning is searched, so that a large
  // file of another kind is rejected quickly.
  const std::uint64_t searched = std::min(file_.size(), kHeaderSearchBytes);
  if (find_next_block(first_block, searched) == searched) throw FormatError(path_ + " is not an alloctrace trace");
  ++integrity_.corrupt_blocks;
  integrity_.corrupt_bytes += sizeof header;
  damaged_parts_.push_back({0, sizeof header, true});
}

// Return the offset of the next valid block header from `offset` on, or `end` if there is none before `end`.
std::uint64_t TraceReader::find_next_block(std::uint64_t offset, std::uint64_t end) const {
  Bytes window;
  for (; offset < end; offset += kScanWindow) {
    // Windows overlap by the magic's length less one: a magic across a border is found.
    window.resize(std::min<std::uint64_t>(kScanWindow + sizeof kBlockMagic - 1, end - offset));
    if (!file_.read(window.data(), window.size(), offset)) break;
    for (std::size_t at = 0; at + sizeof kBlockMagic <= window.size(); ++at) {
      BlockHeader header;
      if (std::memcmp(window.data() + at, &kBlockMagic, sizeof kBlockMagic) == 0 &&
          read_block_header(file_, offset + at, header)) {
        return offset + at;
      }
    }
  }
  return end;
}

void TraceReader::scan_blocks(std::uint64_t offset, const std::function<void(double)>& progress) {
  // Maximum bytes of corrupt payloads read, in file sizes: in a crafted file each header may claim the rest.
  constexpr std::uint64_t kMaxWastedFactor = 16;
  std::uint64_t wasted_bytes = 0;
  Bytes payload;
  while (offset < file_.size()) {
    if (wasted_bytes / kMaxWastedFactor > file_.size()) {
      record_damage(offset, file_.size(), false);
      return;
    }
    if (progress) progress(static_cast<double>(offset) / static_cast<double>(file_.size()));
    BlockHeader header;
    if (!read_block_header(file_, offset, header)) {
      const std::uint64_t next = find_next_block(offset + 1, file_.size());
      // If no valid block follows and only the beginning of a header is left, the file was truncated here.
      record_damage(offset, next, next == file_.size() && is_truncated_header(offset));
      offset = next;
      continue;
    }
    const std::uint64_t payload_offset = offset + sizeof header;
    merge_counters(integrity_.counters, header.counters);
    const bool is_complete = header.payload_bytes <= file_.size() - payload_offset;
    payload.resize(is_complete ? header.payload_bytes : 0);
    if (!is_complete || !file_.read(payload.data(), payload.size(), payload_offset) ||
        crc32(payload.data(), payload.size()) != header.payload_crc) {
      wasted_bytes += payload.size();
      // Search from the payload's start: if bytes are missing, the next block begins before the payload's stated end.
      const std::uint64_t next = find_next_block(payload_offset, file_.size());
      record_damage(offset, next, next == file_.size() && !is_complete);
      if (header.type == BlockType::kEvents && is_complete) {
        corrupt_end_ = std::max(corrupt_end_, header.first_sequence + header.event_count);
      }
      offset = next;
      continue;
    }
    // Not of a truncated block: its events are in the spool, and their times follow from the anchor before it.
    record_anchor(header.begin);
    record_anchor(header.end);
    const std::uint64_t end = payload_offset + header.payload_bytes;
    try {
      add_block(header, payload_offset, payload);
    } catch (const DecodeError&) {
      record_damage(offset, end, false);
    }
    offset = end;
  }
}

// Return whether the file's bytes from `offset` on are the beginning of a block header and nothing else.
bool TraceReader::is_truncated_header(std::uint64_t offset) const {
  const std::uint64_t left = file_.size() - offset;
  std::uint32_t magic = kBlockMagic;
  return left < sizeof(BlockHeader) && file_.read(&magic, std::min<std::uint64_t>(left, sizeof magic), offset) &&
         magic == kBlockMagic;
}

void TraceReader::record_damage(std::uint64_t begin, std::uint64_t end, bool is_truncated) {
  // After the end block of a stopped recording no block can be truncated: extra bytes are corrupt.
  if (is_truncated && !integrity_.ended) {
    integrity_.truncated_bytes += end - begin;
    complete_bytes_ = begin;
  } else {
    // Count adjacent pieces once: garbage that looks like a block header splits a corrupt part.
    const bool is_new = begin != last_damage_end_;
    if (is_new) ++integrity_.corrupt_blocks;
    integrity_.corrupt_bytes += end - begin;
    damaged_parts_.push_back({begin, end - begin, is_new});
    last_damage_end_ = end;
  }
}

void TraceReader::add_block(const BlockHeader& header, std::uint64_t payload_offset, const Bytes& payload) {
  const bool is_misplaced = header.type == BlockType::kCompacted && !may_be_compacted_;
  may_be_compacted_ = may_be_compacted_ && may_precede_compacted(header);
  if (is_misplaced) throw DecodeError("a compacted part that is not at the beginning");
  switch (header.type) {
    case BlockType::kHeader:
      header_json_.assign(payload.begin(), payload.end());
      break;
    case BlockType::kDefinitions:
    case BlockType::kDictionary:
      definitions_.add(payload.data(), payload.size());
      break;
    case BlockType::kEvents: {
      if (header.first_sequence < (chunks_.empty() ? integrity_.compacted_until : chunks_.back().end_sequence())) {
        throw DecodeError("a block has events that were in one before it");
      }
      // Each event takes at least two bytes: tag and time.
      if (header.event_count > header.payload_bytes / 2)
        throw DecodeError("a block has more events than bytes for them");
      Chunk chunk;
      chunk.first_sequence = header.first_sequence;
      chunk.event_count = header.event_count;
      chunk.begin = header.begin;
      chunk.end = header.end;
      chunk.payload_offset = payload_offset;
      chunk.payload_bytes = header.payload_bytes;
      add_chunk(chunk);
      break;
    }
    case BlockType::kEnd:
      end_json_.assign(payload.begin(), payload.end());
      integrity_.ended = true;
      break;
    case BlockType::kCompacted:
      add_compacted(header, payload_offset, payload);
      break;
    default:
      break;  // from a newer writer: the rest is readable without it
  }
  // Each block contains the number of the next event: a jump shows that a block of events is missing before it.
  const std::uint64_t next = header.first_sequence + (header.type == BlockType::kEvents ? header.event_count : 0);
  if (header.type != BlockType::kEvents && next > next_sequence_) {
    integrity_.missing_events += next - next_sequence_;
  }
  next_sequence_ = std::max(next_sequence_, next);
}

// Read the summary of the compacted part, which replaces the events before summary.until.
void TraceReader::add_compacted(const BlockHeader& header, std::uint64_t payload_offset, const Bytes& payload) {
  ByteReader reader(payload);
  const CompactionSummary summary = CompactionSummary::read(reader, header.first_sequence);
  compacted_offset_ = payload_offset + (payload.size() - reader.remaining());
  compacted_bytes_ = reader.remaining();
  compacted_version_ = summary.version;
  integrity_.compacted_events = summary.events;
  integrity_.compacted_until = summary.until;
  integrity_.compacted_until_ns = summary.time_ns;
  integrity_.max_bytes = summary.max_bytes;
  integrity_.bound_exceeded = summary.is_exceeded;
  integrity_.keep_ns = summary.keep_ns;
  integrity_.keeps_less = summary.keeps_less;
  integrity_.missing_events += summary.missing;
  compacted_damage_ = {summary.corrupt_blocks, summary.corrupt_bytes};
  integrity_.corrupt_blocks += summary.corrupt_blocks;
  integrity_.corrupt_bytes += summary.corrupt_bytes;
  next_sequence_ = summary.until;
}

Bytes TraceReader::read_compacted() const {
  if (compacted_version_ != CompactionSummary::kVersion) throw unsupported_compaction(path_, compacted_version_);
  Bytes payload(compacted_bytes_);
  if (!file_.read(payload.data(), payload.size(), compacted_offset_)) {
    throw OpenError(path_ + " was cut short while it was read: read it again");
  }
  return payload;
}

std::uint64_t TraceReader::offset_of_events(std::uint64_t sequence) const {
  for (const Chunk& chunk : chunks_) {
    if (chunk.end_sequence() > sequence && chunk.spool_run == SIZE_MAX) {
      return chunk.payload_offset - sizeof(BlockHeader);
    }
  }
  return file_.size();
}

TraceReader::Damage TraceReader::damage_before(std::uint64_t offset) const {
  Damage damage;
  for (const DamagedPart& part : damaged_parts_) {
    if (part.offset >= offset) continue;
    damage.blocks += part.is_new ? 1 : 0;
    damage.bytes += part.bytes;
  }
  return damage;
}

void TraceReader::add_chunk(const Chunk& chunk) {
  if (chunk.first_sequence > next_sequence_) integrity_.missing_events += chunk.first_sequence - next_sequence_;
  next_sequence_ = std::max(next_sequence_, chunk.end_sequence());
  integrity_.events += chunk.event_count;
  chunks_.push_back(chunk);
}

void TraceReader::add_spool() {
  try {
    definitions_.add(spool_->definitions.data(), spool_->definitions.size());
  } catch (const DecodeError&) {
    ++integrity_.corrupt_blocks;
  }
  record_anchor(spool_->anchor);
  merge_counters(integrity_.counters, spool_->counters);
  integrity_.uncommitted = spool_->uncommitted;
  integrity_.truncated_bytes = 0;  // the spool has the events of the truncated block
  if (spool_->first_sequence > next_sequence_) {
    integrity_.missing_events += spool_->first_sequence - next_sequence_;
    next_sequence_ = spool_->first_sequence;
  }
  for (std::size_t run = 0; run < spool_->runs.size(); ++run) {
    SpoolContents::Run& events = spool_->runs[run];
    // Events written to the file but not yet released from the spool when the process was killed.
    const std::uint64_t written = next_sequence_ > events.first_sequence ? next_sequence_ - events.first_sequence : 0;
    if (written >= events.events.size()) continue;
    events.events.erase(events.events.begin(), events.events.begin() + static_cast<std::ptrdiff_t>(written));
    events.first_sequence += written;
    Chunk chunk;
    chunk.first_sequence = events.first_sequence;
    chunk.event_count = events.events.size();
    chunk.begin = last_anchor_of_file_;
    chunk.end = last_anchor_;
    chunk.spool_run = run;
    // A gap before this run is counted as `uncommitted`, not as missing events.
    next_sequence_ = std::max(next_sequence_, chunk.first_sequence);
    add_chunk(chunk);
    integrity_.recovered += chunk.event_count;
  }
}

void TraceReader::record_anchor(const ClockAnchor& anchor) {
  if (!is_plausible(anchor)) return;
  if (first_anchor_.counter == 0) first_anchor_ = anchor;
  if (anchor.monotonic_ns >= last_anchor_.monotonic_ns) last_anchor_ = anchor;
}

void TraceReader::decode(const Chunk& chunk, std::vector<Event>& out) const {
  if (chunk.spool_run != SIZE_MAX) {
    out = spool_->runs[chunk.spool_run].events;
  } else {
    Bytes payload(chunk.payload_bytes);
    if (!file_.read(payload.data(), payload.size(), chunk.payload_offset)) {
      throw OpenError(path_ + " was cut short while it was read: read it again");
    }
    decode_events(payload.data(), payload.size(), chunk.event_count, chunk.begin.counter, out);
  }
  // Set ids without a definition to 0, so that callers can index with them unchecked.
  for (Event& event : out) {
    if (event.stack >= definitions_.frame_count()) event.stack = 0;
    if (event.location >= definitions_.location_count()) event.location = 0;
    if (event.node_type >= definitions_.node_type_count()) event.node_type = 0;
  }
}

ChunkClock TraceReader::clock_of(const Chunk& chunk) const {
  // Within 1 ms the anchors' jitter would distort the slope: use that of the complete trace.
  const std::uint64_t counts = chunk.end.counter - chunk.begin.counter;
  const std::uint64_t span_ns = chunk.end.monotonic_ns - chunk.begin.monotonic_ns;
  const double slope =
      span_ns > 1'000'000 && counts > 0 ? static_cast<double>(span_ns) / static_cast<double>(counts) : slope_;
  // Times follow the monotonic clock: they must not jump when the wall clock is set while the program runs.
  return {chunk.begin.counter, first_anchor_.wall_ns + (chunk.begin.monotonic_ns - first_anchor_.monotonic_ns), slope};
}

std::int64_t ChunkClock::wall_ns(std::uint64_t counter) const {
  constexpr double kLimit = 0x1p62;  // beyond it the conversion to an integer is undefined
  const auto since_begin = static_cast<double>(static_cast<std::int64_t>(counter - begin_counter)) * slope;
  const auto offset = static_cast<std::int64_t>(std::clamp(since_begin, -kLimit, kLimit));
  return static_cast<std::int64_t>(begin_ns + static_cast<std::uint64_t>(offset));
}

}  // namespace alloctrace
