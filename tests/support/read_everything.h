// All that the readers of csrc/core offer, of one trace: for the fuzzers, under sanitizers.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/core/reading/trace_reader.h"
#include "../../csrc/core/replay/replay_run.h"
#include "../../csrc/core/what_if/predict.h"

namespace alloctrace {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// The state, or "refused". What no file may bring about ends the program.
inline std::string read_everything(const std::string& path, const std::string& spool = "") {
  try {
    const auto opened = std::make_shared<const TraceReader>(path, spool);
    const TraceReader& trace = *opened;
    // Decoding is safe on several threads at once.
    const auto decode_all = [&trace] {
      std::vector<Event> decoded;
      for (const Chunk& chunk : trace.chunks()) {
        try {
          trace.decode(chunk, decoded);
        } catch (const DecodeError&) {
        }
      }
    };
    const std::jthread first(decode_all), second(decode_all);
    std::uint64_t events = 0;
    std::vector<Event> decoded;
    for (const Chunk& chunk : trace.chunks()) {
      events += chunk.event_count;
      try {
        trace.decode(chunk, decoded);
      } catch (const DecodeError&) {
        continue;
      }
      if (decoded.size() != chunk.event_count) fail("a block has another number of events than it says");
      for (const Event& event : decoded) {
        static_cast<void>(trace.clock_of(chunk).wall_ns(event.time));
        if (event.stack != 0 && event.stack >= trace.definitions().frame_count()) fail("an unknown stack");
      }
    }
    if (events != trace.integrity().events) fail("the number of readable events is not the sum of the blocks'");
    const Definitions& names = trace.definitions();
    const std::vector<std::int32_t> lines = names.lines();
    for (std::uint32_t id = 0; id < std::min<std::size_t>(names.frame_count(), 1000); ++id) {
      if (names.line(id) != lines[id]) fail("a frame with two lines");
      names.source(names.code(names.frame(id).code).filename, lines[id]);
    }
    ReplayRun replayed(opened, 50);
    for (const std::uint64_t quarter : {2, 3, 1}) static_cast<void>(replayed.state_before(events * quarter / 4));
    static_cast<void>(replayed.sequence_after(trace.begin_ns()));
    static_cast<void>(replayed.role_timelines(20));
    static_cast<void>(replayed.role_allocations(events / 4, events / 2));
    for (const DeviceMemory& device : replayed.end().devices()) {
      std::vector<SegmentView> segments;
      std::vector<Piece> blocks;
      device.list(segments, blocks);
      what_if::LaneOptions other;
      other.settings = R"({"expandable_segments": true})";
      other.capacity = std::uint64_t{40} << 30;
      static_cast<void>(
          what_if::predict(opened, device.device_type(), device.device_index(), {}, {what_if::LaneOptions{}, other}));
    }
    return trace.integrity().state();
  } catch (const FormatError&) {
    return "refused";
  } catch (const OpenError&) {
    return "refused";
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

}  // namespace alloctrace
