// Events of a trace as numpy columns, in batches.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <vector>

#include "../../core/replay/run_evidence.h"
#include "../../core/replay/trace_cursor.h"

namespace alloctrace {

class EventStream {
 public:
  // Stream events [first, end) of `kinds` (empty: all). cursor: at or before `first`. retained: of the compacted part.
  EventStream(TraceCursor cursor, std::uint64_t first, std::uint64_t end, const std::vector<std::uint8_t>& kinds,
              std::vector<KeptEvent> retained = {});

  // Return the next columns, or None at the end: at least `min_rows` events, fewer at the end or if few match among
  // kMaxEventsPerCall, so that Python handles Ctrl-C between calls.
  pybind11::object next(std::size_t min_rows);

 private:
  TraceCursor cursor_;
  std::uint64_t first_, end_;
  std::array<bool, 256> is_wanted_{};
  std::vector<KeptEvent> retained_;
};

}  // namespace alloctrace
