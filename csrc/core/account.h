// One pass over a trace: what is live at its end (or at any earlier event), the totals by stack, and the positions that
// the program set. Streams through the chunks; memory in proportion to live blocks and stacks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ledger.h"
#include "trace_reader.h"

namespace alloctrace {

// A step's end, a mark, a region's begin or end.
struct Position {
  EventKind kind;
  std::uint64_t sequence;
  std::int64_t time_ns;
  std::uint64_t value;                    // number of the step, or string id of the name
  std::vector<std::uint64_t> live_bytes;  // per device, in the order of Account::devices()
};

class Account {
 public:
  // Applies all events with a sequence number below `until`. `progress` is told a share from 0 to 1 after each chunk.
  // Throws OpenError when the file went away meanwhile.
  Account(const TraceReader& trace, std::uint64_t until, const std::function<void(double)>& progress = {});

  const std::vector<DeviceLedger>& devices() const { return ledger_.devices(); }
  const Ledger& ledger() const { return ledger_; }
  const std::vector<Position>& positions() const { return positions_; }
  // How many events of a kind there are, kinds of a newer recorder too.
  static constexpr std::size_t kKindNumbers = 256;
  std::uint64_t kind_count(std::size_t kind) const { return kind_counts_[kind]; }
  std::uint64_t undecodable_chunks() const { return undecodable_chunks_; }

 private:
  void note_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns);

  Ledger ledger_;
  std::vector<Position> positions_;
  std::uint64_t kind_counts_[kKindNumbers] = {};
  std::uint64_t undecodable_chunks_ = 0;
};

}  // namespace alloctrace
