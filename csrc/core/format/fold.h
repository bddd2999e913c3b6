// Compacted part at the start of a trace: a summary for every reader, then what the replay reads (replay/fold.h).
#pragma once

#include <cstdint>

#include "../base/varint.h"

namespace alloctrace {

struct CompactionSummary {
  // Version of the payload after the summary. The summary itself changes only by fields added at its end.
  static constexpr std::uint64_t kVersion = 2;

  std::uint64_t version = kVersion;
  std::uint64_t until = 0;    // the first event that is not compacted
  std::int64_t time_ns = 0;   // wall time of the last compacted event
  std::uint64_t events = 0;   // number of compacted events, as far as readable
  std::uint64_t missing = 0;  // number of unreadable events: the other numbers below `until`
  // Corruption in the part of the file that was compacted.
  std::uint64_t corrupt_blocks = 0, corrupt_bytes = 0;
  // Size limit on all files of a recording that compacts its own trace, and whether the limit was exceeded.
  std::uint64_t max_bytes = 0;
  bool is_exceeded = false;
  // Duration whose events were to stay uncompacted at the end, and whether lack of room shortened it.
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
  // Read a summary, up to its end. first_sequence: of the block's header. Throws DecodeError.
  static CompactionSummary read(ByteReader& reader, std::uint64_t first_sequence) {
    const std::uint64_t version = reader.varint();
    const std::string_view text = reader.text();
    ByteReader fields(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    CompactionSummary summary;
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
