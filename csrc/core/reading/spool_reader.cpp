#include "spool_reader.h"

#include <cstring>
#include <memory>

#include "../base/input_file.h"
#include "../format/format.h"

namespace alloctrace {

std::optional<SpoolContents> read_spool(const std::string& path, const std::uint8_t (&session_id)[16]) {
  const InputFile file(path);
  const auto header_owner = std::make_unique<SpoolHeader>();
  const SpoolHeader& header = *header_owner;
  const auto read_header = [&] { return file.read(header_owner.get(), sizeof(SpoolHeader), 0); };
  if (!file.is_open() || !read_header()) return std::nullopt;
  const std::uint64_t capacity = header.ring_capacity;
  if (std::memcmp(header.magic, kSpoolMagic, sizeof kSpoolMagic) != 0 ||
      (header.format_version != kFormatVersion && header.format_version != kFirstFormatVersion) ||
      header.event_bytes != sizeof(Event) || std::memcmp(header.session_id, session_id, sizeof session_id) != 0 ||
      header.head > kMaxSequence || header.tail > kMaxSequence || capacity == 0 || (capacity & (capacity - 1)) != 0 ||
      header.ring_offset > file.size() || capacity > (file.size() - header.ring_offset) / sizeof(Event) ||
      header.definitions_offset > file.size() || header.definitions_capacity == 0 ||
      header.definitions_capacity > file.size() - header.definitions_offset) {
    return std::nullopt;
  }

  SpoolContents contents;
  const std::uint64_t head = header.head;
  std::vector<Event> ring(capacity);
  if (!file.read(ring.data(), capacity * sizeof(Event), header.ring_offset)) return std::nullopt;

  // Read definitions after the events that refer to them. The writer may overwrite log positions before its tail: the
  // copy is valid from the tail that is read after copying.
  Bytes log(header.definitions_capacity);
  const std::uint64_t definitions_offset = header.definitions_offset;
  if (!read_header()) return std::nullopt;
  const std::uint64_t definitions_head = header.definitions.head;
  if (!file.read(log.data(), log.size(), definitions_offset) || !read_header()) return std::nullopt;
  const std::uint64_t definitions_tail = header.definitions.tail;
  if (definitions_head > definitions_tail && definitions_head - definitions_tail <= log.size()) {
    copy_bytes_from_ring(log.data(), log.size(), definitions_tail, definitions_head, contents.definitions);
  }

  // Slots before the current tail may have been reused during the copy: the trace file has their events.
  const std::uint64_t tail = header.tail;
  if (tail > kMaxSequence) return std::nullopt;
  contents.first_sequence = tail;
  contents.next_sequence = head;
  bool starts_run = true;
  for (std::uint64_t position = tail; position < head && position - tail < capacity; ++position) {
    Event& event = ring[position & (capacity - 1)];
    const std::uint32_t mark = commit_mark(position);
    if (event.commit == (mark ^ kCompletedBit)) {
      event.kind = EventKind::kFreeCompleted;
    } else if (event.commit != mark && event.commit != (mark ^ kConsumedBit)) {
      ++contents.uncommitted;
      starts_run = true;
      continue;
    }
    if (starts_run) contents.runs.push_back({position, {}});
    starts_run = false;
    contents.runs.back().events.push_back(event);
  }

  contents.recorder = header.recorder;
  contents.anchor = header.anchors[header.anchor_index & 1];
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) contents.counters.lost[cause] = header.lost[cause];
  contents.counters.empty_allocations = header.empty_allocations;
  contents.counters.reentered = header.reentered;
  contents.counters.unknown_stacks = header.unknown_stacks;
  return contents;
}

}  // namespace alloctrace
