// A fold: what stands at the beginning of a trace in place of the events before a certain one. Its payload begins with
// a summary, which every reader needs; what follows is the replay's (replay/fold.h).
#pragma once

#include <cstdint>

#include "../base/varint.h"

namespace alloctrace {

struct FoldSummary {
  // Of what follows the summary. The summary itself is the same in all versions, but for what is added at its end.
  static constexpr std::uint64_t kVersion = 2;

  std::uint64_t version = kVersion;
  std::uint64_t until = 0;    // the first event that is not folded
  std::int64_t time_ns = 0;   // of the last one that is (wall clock)
  std::uint64_t events = 0;   // how many could be read when they were folded
  std::uint64_t missing = 0;  // those that could not: the rest of the numbers below `until`
  // Damage in the part of the file that was folded.
  std::uint64_t corrupt_blocks = 0, corrupt_bytes = 0;
  // Of a recording that folds its own trace: what all its files were to have at most, and whether that could not be
  // kept.
  std::uint64_t max_bytes = 0;
  bool is_exceeded = false;
  // The events of so long before were to stay as they are; and whether that could not be kept to, for want of room.
  std::uint64_t keep_ns = 0;
  bool keeps_less = false;

  void put(Bytes& out) const {
    Bytes fields;
    put_varint(fields, until);
    put_varint(fields, zigzag(time_ns));
    put_varint(fields, events);
    put_varint(fields, missing);
    put_varint(fields, corrupt_blocks);
    put_varint(fields, corrupt_bytes);
    put_varint(fields, max_bytes);
    put_varint(fields, is_exceeded ? 1 : 0);
    put_varint(fields, keep_ns);
    put_varint(fields, keeps_less ? 1 : 0);
    put_varint(out, kVersion);
    put_varint(out, fields.size());
    out.insert(out.end(), fields.begin(), fields.end());
  }
  // Leaves the reader behind the summary. first_sequence: of the block's header. Throws DecodeError.
  static FoldSummary read(ByteReader& reader, std::uint64_t first_sequence) {
    const std::uint64_t version = reader.varint();
    const std::string_view text = reader.text();
    ByteReader fields(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    FoldSummary summary;
    summary.version = version;
    summary.until = fields.varint();
    summary.time_ns = unzigzag(fields.varint());
    summary.events = fields.varint();
    summary.missing = fields.varint();
    summary.corrupt_blocks = fields.varint();
    summary.corrupt_bytes = fields.varint();
    summary.max_bytes = fields.varint();
    summary.is_exceeded = fields.varint() != 0;
    if (!fields.done()) {
      summary.keep_ns = fields.varint();
      summary.keeps_less = fields.varint() != 0;
    }
    if (summary.until != first_sequence) throw DecodeError("a compacted part up to another event than its block says");
    if (summary.events > summary.until || summary.missing > summary.until - summary.events) {
      throw DecodeError("a compacted part of more events than there were");
    }
    return summary;
  }
};

}  // namespace alloctrace
