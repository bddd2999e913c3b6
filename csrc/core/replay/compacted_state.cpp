#include "compacted_state.h"

#include <algorithm>

namespace alloctrace {

CompactedState::CompactedState(const TraceReader& trace)
    : definitions_(&trace.definitions()),
      until_ns_(trace.integrity().compacted_until_ns),
      payload_(trace.read_compacted()) {
  ByteReader reader(payload_);
  const auto read_part = [&] {
    const std::string_view bytes = reader.text();
    const auto end = static_cast<std::size_t>(reader.position() - payload_.data());
    return Part{end - bytes.size(), bytes.size()};
  };
  state_ = read_part();
  evidence_ = read_part();
  const std::uint64_t count = reader.varint();
  for (std::uint64_t index = 0; index < count; ++index) {
    const std::uint64_t until = reader.varint();
    if (until > trace.compacted_until() || (!snapshot_positions_.empty() && until <= snapshot_positions_.back())) {
      throw DecodeError("snapshots that are not in order");
    }
    snapshot_positions_.push_back(until);
    parts_.push_back(read_part());
  }
}

CompactionReader CompactedState::reader(const Part& part) const {
  return {ByteReader(payload_.data() + part.begin, part.size), *definitions_};
}

void CompactedState::restore(Replay& replay, RunEvidence& evidence) const {
  CompactionReader state_reader = reader(state_);
  replay.restore(state_reader);
  CompactionReader evidence_reader = reader(evidence_);
  evidence.restore(evidence_reader, replay, until_ns_);
}

std::optional<Replay> CompactedState::memory_before(std::uint64_t event, const Replay& end) const {
  const auto position = std::lower_bound(snapshot_positions_.begin(), snapshot_positions_.end(), event);
  if (position == snapshot_positions_.end() || *position != event) return std::nullopt;
  CompactionReader memory = reader(parts_[static_cast<std::size_t>(position - snapshot_positions_.begin())]);
  Replay replay(*definitions_);
  replay.restore_memory(memory, end);
  return replay;
}

Bytes compaction_payload(const Replay& replay, const RunEvidence& evidence,
                         const std::vector<CompactedSnapshot>& snapshots, const std::vector<Roles::Key>& past) {
  CompactionWriter payload(evidence.definitions());
  payload.section([&](CompactionWriter& inner) { replay.save(inner); });
  payload.section([&](CompactionWriter& inner) { evidence.save(inner, replay, past); });
  payload.number(snapshots.size());
  for (const CompactedSnapshot& snapshot : snapshots) {
    payload.number(snapshot.until);
    payload.number(snapshot.memory.size());
    payload.raw(snapshot.memory.data(), snapshot.memory.size());
  }
  return payload.bytes();
}

}  // namespace alloctrace
