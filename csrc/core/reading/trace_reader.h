// Reads a trace file, whole or damaged, together with the spool of a recording that was killed or still runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../base/input_file.h"
#include "../format/definitions.h"
#include "../format/fold.h"
#include "../format/format.h"
#include "spool_reader.h"

namespace alloctrace {

// Not a trace, or of a newer format: one sentence for the user.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Of a fold whose sums are of another version than this one replays.
inline FormatError other_fold_version(const std::string& path, std::uint64_t version) {
  return FormatError(
      path + " was compacted by another version of pytorch_alloctrace (its compacted part is of version " +
      std::to_string(version) + ", this one replays version " + std::to_string(CompactionSummary::kVersion) +
      "): read it with the version that compacted it, or compact the whole trace again");
}
class OpenError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What is there and what is missing. `state()` sums it up in one word.
struct Integrity {
  std::uint64_t events = 0;          // readable
  std::uint64_t recovered = 0;       // of `events`, from the spool
  std::uint64_t uncommitted = 0;     // hooks that were killed before their end: their calls had not returned
  std::uint64_t missing_events = 0;  // in damaged or absent blocks, by the sequence numbers around them
  std::uint64_t corrupt_blocks = 0;  // damaged parts of the file
  std::uint64_t corrupt_bytes = 0;
  std::uint64_t truncated_bytes = 0;  // of an unfinished block at the end
  std::uint64_t folded_events = 0;    // of which the trace has sums alone; not among `events`
  std::uint64_t folded_until = 0;     // the number of the first event that it has as such; 0: nothing is folded
  std::int64_t folded_until_ns = 0;   // the time of the last folded one
  std::uint64_t max_bytes = 0;        // what the files of the recording were to have at most; 0: it was not bounded
  bool bound_exceeded = false;        // and could not be kept to
  std::uint64_t keep_ns = 0;          // how long single events were to stay; 0: that was not said
  bool keeps_less = false;            // and could not be kept to
  bool ended = false;                 // the recording was stopped in good order
  bool spool_read = false;            // the spool of this session was there and was read
  Counters counters{};                // the latest known

  std::uint64_t lost() const;
  // "corrupt": bytes of the file are damaged; "gaps": events were lost while recording, or blocks are absent;
  // "truncated": the file ends before the recording did and no spool has the rest; else "complete".
  const char* state() const;
};

// A run of events with consecutive sequence numbers, decoded on demand.
struct Chunk {
  std::uint64_t first_sequence = 0;
  std::uint64_t event_count = 0;
  ClockAnchor begin{}, end{};
  std::uint64_t payload_offset = 0, payload_bytes = 0;  // in the file
  std::size_t spool_run = SIZE_MAX;                     // or: which run of the spool

  // The number after that of its last event.
  std::uint64_t end_sequence() const { return first_sequence + event_count; }
};

// Turns the counter values of one chunk into wall clock time.
struct ChunkClock {
  std::uint64_t begin_counter = 0, begin_ns = 0;
  double slope = 1.0;  // ns per count
  std::int64_t wall_ns(std::uint64_t counter) const;
};

class TraceReader {
 public:
  // Where the recorder wrote trace and spool, from the header's JSON, which the caller can read; "" where it names
  // none.
  struct RecordedPaths {
    std::string trace, spool;
  };
  using PathsOfHeader = std::function<RecordedPaths(const std::string&)>;

  // `spool_path` empty: TRACE.spool, or where the trace's header says that it is. `progress` gets a share from 0
  // to 1. Throws OpenError or FormatError; damage never throws.
  // `end`: of a recording that runs in this process, so many bytes of whole blocks, and no spool.
  TraceReader(const std::string& path, const std::string& spool_path, const std::function<void(double)>& progress = {},
              const PathsOfHeader& paths_of_header = {}, std::uint64_t end = UINT64_MAX);

  const std::string& path() const { return path_; }
  const std::string& header_json() const { return header_json_; }  // "{}" when it was lost
  const std::string& end_json() const { return end_json_; }
  const Definitions& definitions() const { return definitions_; }
  const Integrity& integrity() const { return integrity_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::uint64_t file_bytes() const { return file_.size(); }

  // What the trace begins with instead of the events before Integrity::folded_until: its payload, behind the summary;
  // empty where nothing is folded. Throws OpenError, and FormatError where it is of another version.
  Bytes read_fold() const;
  std::uint64_t folded_until() const { return integrity_.folded_until; }
  // For whoever writes a trace of this one. Where the first block begins that has events from `sequence` on, or the
  // end of the file; and the damage before there.
  std::uint64_t offset_of_events(std::uint64_t sequence) const;
  struct Damage {
    std::uint64_t blocks = 0, bytes = 0;
  };
  Damage damage_before(std::uint64_t offset) const;
  // That of the part that is folded, before it was.
  const Damage& folded_damage() const { return folded_damage_; }
  const InputFile& file() const { return file_; }
  const std::uint8_t (&session_id() const)[16] { return session_id_; }
  // When the recording began.
  const ClockAnchor& first_anchor() const { return first_anchor_; }

  // For finish_trace. The spool, nullptr where there is none, and where it is.
  const SpoolContents* spool() const { return spool_ ? &*spool_ : nullptr; }
  const std::string& spool_path() const { return spool_path_; }
  // The trace that the recorder wrote. "" if the spool lies next to this one, or its path was given.
  const std::string& recorded_path() const { return recorded_path_; }
  // Where the file ends, without the block that was being written when its recording was killed.
  std::uint64_t whole_bytes() const { return whole_bytes_; }
  // The number after that of the last event.
  std::uint64_t next_sequence() const { return next_sequence_; }
  // The latest of the file, and of file and spool.
  const ClockAnchor& last_anchor_of_file() const { return last_anchor_of_file_; }
  const ClockAnchor& last_anchor() const { return last_anchor_; }

  // Events of one chunk, in order; the first has chunk.first_sequence. A stack, location or node type that has no
  // definition (damage took it) comes out as 0. Thread-safe. Throws OpenError, or DecodeError where a faulty writer
  // made the block.
  void decode(const Chunk& chunk, std::vector<Event>& out) const;

  // For the wall clock time (ns since 1970) of the chunk's events.
  ChunkClock clock_of(const Chunk& chunk) const;
  // First and last time known, wall clock.
  std::int64_t begin_ns() const { return begin_ns_; }
  std::int64_t end_ns() const { return end_ns_; }

 private:
  void read_file_header(std::uint64_t& first_block);
  void scan_blocks(std::uint64_t offset, const std::function<void(double)>& progress);
  std::uint64_t find_next_block(std::uint64_t offset, std::uint64_t end) const;
  bool is_cut_header(std::uint64_t offset) const;
  void note_damage(std::uint64_t begin, std::uint64_t end, bool is_cut);
  void take_block(const BlockHeader& header, std::uint64_t payload_offset, const Bytes& payload);
  void take_fold(const BlockHeader& header, std::uint64_t payload_offset, const Bytes& payload);
  void add_chunk(const Chunk& chunk);
  void take_spool();
  void extend_to_spool();
  void note_clock(const ClockAnchor& anchor);

  struct DamagedPart {
    std::uint64_t offset = 0, bytes = 0;
    bool is_new = false;  // else it continues the one before
  };

  std::string path_, spool_path_, recorded_path_;
  InputFile file_;
  std::uint8_t session_id_[16] = {};
  bool may_have_fold_ = true;                       // after what was read
  std::uint64_t fold_offset_ = 0, fold_bytes_ = 0;  // its payload behind the summary
  std::uint64_t fold_version_ = CompactionSummary::kVersion;
  std::vector<DamagedPart> damage_;
  Damage folded_damage_;
  std::string header_json_ = "{}", end_json_ = "{}";
  Definitions definitions_;
  Integrity integrity_;
  std::vector<Chunk> chunks_;
  std::optional<SpoolContents> spool_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t damaged_end_ = 0;      // end of the last event block whose payload is damaged
  std::uint64_t last_damage_end_ = 0;  // in the file: of the damage that was noted last
  std::uint64_t whole_bytes_ = 0;
  ClockAnchor first_anchor_{}, last_anchor_{}, last_anchor_of_file_{};
  double slope_ = 1.0;  // ns per count over the whole trace
  std::int64_t begin_ns_ = 0, end_ns_ = 0;
};

}  // namespace alloctrace
