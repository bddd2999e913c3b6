#include "trace_reader.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "../format/event_codec.h"

namespace alloctrace {
namespace {

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
    : path_(path), file_(path), scanner_(file_) {
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
      FileBlock block;
      const FileBlockState state = scanner_.read(first_block, block);
      scanner_.renew_budget();
      // Also of a corrupt header: the paths may be readable.
      if ((state == FileBlockState::kComplete || state == FileBlockState::kCorruptPayload) &&
          block.header.type == BlockType::kHeader) {
        const RecordedPaths recorded = paths_of_header({block.payload.begin(), block.payload.end()});
        spool_path_ = recorded.spool;
        recorded_path_ = recorded.trace;
        spool_ = read_spool(spool_path_, session_id_);
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
  last_anchor_of_file_ = clock_.last();
  if (spool_) add_spool();
  if (!definitions_.limit_depth()) ++integrity_.corrupt_blocks;
  if (corrupt_end_ > next_sequence_) integrity_.missing_events += corrupt_end_ - next_sequence_;
  end_ns_ = clock_.end_ns();
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
    if (!has_magic) throw not_a_trace(path_);
    integrity_.truncated_bytes = available;
    return;
  }
  if (is_valid(header)) return check_version(header, path_);
  // The header may be corrupt: the file is a trace if a block follows. Only the beginning is searched, so that a large
  // file of another kind is rejected quickly.
  const std::uint64_t searched = std::min(file_.size(), kHeaderSearchBytes);
  if (scanner_.find_header(first_block, searched) == searched) throw not_a_trace(path_);
  ++integrity_.corrupt_blocks;
  integrity_.corrupt_bytes += sizeof header;
  damaged_parts_.push_back({0, sizeof header, true});
}

void TraceReader::scan_blocks(std::uint64_t offset, const std::function<void(double)>& progress) {
  FileBlock block;
  while (offset < file_.size()) {
    if (scanner_.has_wasted_too_much()) return record_damage(offset, file_.size(), false);
    if (progress) progress(static_cast<double>(offset) / static_cast<double>(file_.size()));
    offset = add_block_at(offset, block);
  }
}

// Add the block at an offset, or record the damage there. Return the offset of the next block.
std::uint64_t TraceReader::add_block_at(std::uint64_t offset, FileBlock& block) {
  const FileBlockState state = scanner_.read(offset, block);
  if (state == FileBlockState::kNoHeader) {
    const std::uint64_t next = scanner_.find_header(offset + 1, file_.size());
    // If no valid block follows and only the beginning of a header is left, the file was truncated here.
    record_damage(offset, next, next == file_.size() && is_truncated_header(offset));
    return next;
  }
  const BlockHeader& header = block.header;
  merge_counters(integrity_.counters, header.counters);
  if (state != FileBlockState::kComplete) {
    // Search from the payload's start: if bytes are missing, the next block begins before the payload's stated end.
    const std::uint64_t next = scanner_.find_header(block.payload_offset(), file_.size());
    record_damage(offset, next, next == file_.size() && state == FileBlockState::kBeyondEnd);
    if (header.type == BlockType::kEvents && state == FileBlockState::kCorruptPayload) {
      corrupt_end_ = std::max(corrupt_end_, header.first_sequence + header.event_count);
    }
    return next;
  }
  // Not of a truncated block: its events are in the spool, and their times follow from the anchor before it.
  clock_.add(header.begin);
  clock_.add(header.end);
  try {
    add_block(block);
  } catch (const DecodeError&) {
    record_damage(offset, block.end(), false);
  }
  return block.end();
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

void TraceReader::add_block(const FileBlock& block) {
  const BlockHeader& header = block.header;
  const Bytes& payload = block.payload;
  if (!scanner_.accept(header)) throw DecodeError("a compacted part that is not at the beginning");
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
      chunk.payload_offset = block.payload_offset();
      chunk.payload_bytes = header.payload_bytes;
      add_chunk(chunk);
      break;
    }
    case BlockType::kEnd:
      end_json_.assign(payload.begin(), payload.end());
      integrity_.ended = true;
      break;
    case BlockType::kCompacted:
      add_compacted(block);
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
void TraceReader::add_compacted(const FileBlock& block) {
  ByteReader reader(block.payload);
  const CompactionSummary summary = CompactionSummary::read(reader, block.header.first_sequence);
  compacted_offset_ = block.end() - reader.remaining();
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
  check_compaction_version(compacted_version_, path_);
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
  clock_.add(spool_->anchor);
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
    chunk.end = clock_.last();
    chunk.spool_run = run;
    // A gap before this run is counted as `uncommitted`, not as missing events.
    next_sequence_ = std::max(next_sequence_, chunk.first_sequence);
    add_chunk(chunk);
    integrity_.recovered += chunk.event_count;
  }
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
  for (Event& event : out) definitions_.clear_undefined_ids(event);
}

}  // namespace alloctrace
