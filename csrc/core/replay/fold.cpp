#include "fold.h"

#include <algorithm>

namespace alloctrace {

Fold::Fold(const TraceReader& trace)
    : definitions_(&trace.definitions()),
      until_ns_(trace.integrity().compacted_until_ns),
      payload_(trace.read_compacted()) {
  ByteReader reader(payload_);
  const auto part = [&] {
    const std::string_view bytes = reader.text();
    const auto end = static_cast<std::size_t>(reader.position() - payload_.data());
    return Part{end - bytes.size(), bytes.size()};
  };
  state_ = part();
  evidence_ = part();
  const std::uint64_t count = reader.varint();
  for (std::uint64_t index = 0; index < count; ++index) {
    const std::uint64_t until = reader.varint();
    if (until > trace.compacted_until() || (!moments_.empty() && until <= moments_.back())) {
      throw DecodeError("moments that are not in order");
    }
    moments_.push_back(until);
    parts_.push_back(part());
  }
}

FoldReader Fold::reader(const Part& part) const {
  return {ByteReader(payload_.data() + part.begin, part.size), *definitions_};
}

void Fold::restore(Replay& replay, RunEvidence& evidence) const {
  FoldReader state = reader(state_);
  replay.restore(state);
  FoldReader gathered = reader(evidence_);
  evidence.restore(gathered, replay, until_ns_);
}

std::optional<Replay> Fold::memory_before(std::uint64_t event, const Replay& end) const {
  const auto found = std::lower_bound(moments_.begin(), moments_.end(), event);
  if (found == moments_.end() || *found != event) return std::nullopt;
  FoldReader memory = reader(parts_[static_cast<std::size_t>(found - moments_.begin())]);
  Replay replay(*definitions_);
  replay.restore_memory(memory, end);
  return replay;
}

Bytes fold_payload(const Replay& replay, const RunEvidence& evidence, const std::vector<FoldedMoment>& moments,
                   const std::vector<Roles::Key>& past) {
  FoldWriter rest(evidence.definitions());
  rest.section([&](FoldWriter& state) { replay.save(state); });
  rest.section([&](FoldWriter& gathered) { evidence.save(gathered, replay, past); });
  rest.number(moments.size());
  for (const FoldedMoment& moment : moments) {
    rest.number(moment.until);
    rest.number(moment.memory.size());
    rest.raw(moment.memory);
  }
  return rest.bytes();
}

}  // namespace alloctrace
