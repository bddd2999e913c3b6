// All that the readers of csrc/core offer, of one trace: for the fuzzers, under sanitizers.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/core/folding/folded_file.h"
#include "../../csrc/core/reading/trace_reader.h"
#include "../../csrc/core/replay/follower.h"
#include "../../csrc/core/replay/replay_run.h"
#include "../../csrc/core/replay/states.h"
#include "../../csrc/core/what_if/predict.h"

namespace alloctrace {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// As `alloctrace live` reads it: what there is, and then once more.
inline void follow(const std::string& path, const std::string& spool) {
  try {
    Follower follower(path, [](const Followed&) {});
    if (!spool.empty()) follower.read_spool_at(spool);
    const std::atomic<bool> cancelled = false;
    for (int times = 0; times < 2; ++times) follower.advance(cancelled);
  } catch (const FormatError&) {
  } catch (const OpenError&) {
  }
}

// Folds a trace up to its middle, and that once more. What was folded can be read, and ends with the same memory; but
// where a block cannot be decoded, one that repeats some of its events may be taken once the fold ends in it.
inline void fold_it(const std::shared_ptr<const TraceReader>& trace, const ReplayRun& whole, bool compare,
                    int times = 2) {
  const std::string out = "/dev/shm/alloctrace_fuzz." + std::to_string(getpid()) + "." + std::to_string(times);
  const std::uint64_t begin = trace->folded_until();
  const std::uint64_t end = trace->chunks().empty() ? begin : trace->chunks().back().end_sequence();
  if (end <= begin) return;
  try {
    fold_trace(trace, begin + (end - begin) / 2 + 1, out, true, {}, {});
  } catch (const FoldingError&) {
    return;
  }
  const auto folded = std::make_shared<const TraceReader>(out, "");
  unlink(out.c_str());
  const ReplayRun again(folded, 50);
  if (times > 1) fold_it(folded, again, compare, times - 1);
  if (!compare) return;
  const std::vector<DeviceMemory>&before = whole.end().devices(), &after = again.end().devices();
  if (before.size() != after.size()) fail("folding changed the devices");
  for (std::size_t index = 0; index < before.size(); ++index) {
    const MemoryTotals &one = before[index].totals(), &other = after[index].totals();
    if (one.requested != other.requested || one.allocated != other.allocated || one.active != other.active ||
        one.reserved != other.reserved || one.blocks != other.blocks) {
      fail("folding changed the memory at the end");
    }
  }
}

// The state, or "refused". What no file may bring about ends the program.
inline std::string read_everything(const std::string& path, const std::string& spool = "") {
  follow(path, spool);
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
    bool all_decoded = true;
    std::vector<Event> decoded;
    for (const Chunk& chunk : trace.chunks()) {
      events += chunk.event_count;
      try {
        trace.decode(chunk, decoded);
      } catch (const DecodeError&) {
        all_decoded = false;
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
    const auto run = std::make_shared<const ReplayRun>(opened, 50);
    const ReplayRun& replayed = *run;
    // Twice at once, as a diagnosis does.
    const auto look = [&run, events] {
      States states(run);
      for (const std::uint64_t quarter : {2, 3, 1}) {
        try {
          static_cast<void>(states.before(events * quarter / 4));
        } catch (const FoldedError&) {
        }
      }
      states.let_go();
      for (const std::uint64_t moment : run->folded_moments()) static_cast<void>(states.before(moment));
    };
    {
      const std::jthread other([&look] {
        try {
          look();
        } catch (const std::runtime_error&) {  // this thread meets it too
        }
      });
      look();
    }
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
    fold_it(opened, replayed, all_decoded);
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
