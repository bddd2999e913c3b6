// The events of a trace, some at a time, as numpy columns.
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
  // The events from `first` on and before `end`, of these kinds; none: of all. `cursor` stands at or before `first`.
  // kept: those of a fold before it.
  EventStream(TraceCursor cursor, std::uint64_t first, std::uint64_t end, const std::vector<std::uint8_t>& kinds,
              std::vector<KeptEvent> kept = {});

  // The next events by column: at least `wanted` as long as there are that many, or what was found among some millions,
  // so that the caller notices Ctrl-C in between. None at the end.
  pybind11::object next(std::size_t wanted);

 private:
  TraceCursor cursor_;
  std::uint64_t first_, end_;
  std::array<bool, 256> is_wanted_{};
  std::vector<KeptEvent> kept_;
};

void define_event_stream(pybind11::module_& module);

}  // namespace alloctrace
