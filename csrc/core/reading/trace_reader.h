// Reader of a trace file, complete or corrupt, and of the spool of a recording that was killed or still runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../base/input_file.h"
#include "../format/definitions.h"
#include "../format/format.h"
#include "block_scanner.h"
#include "read_errors.h"
#include "spool_reader.h"
#include "trace_clock.h"

namespace alloctrace {

// Counts of what a trace contains and lacks.
struct Integrity {
  std::uint64_t events = 0;          // readable
  std::uint64_t recovered = 0;       // of `events`, from the spool
  std::uint64_t uncommitted = 0;     // calls in progress when the process was killed
  std::uint64_t missing_events = 0;  // in corrupt or missing blocks
  std::uint64_t corrupt_blocks = 0;  // corrupt parts of the file
  std::uint64_t corrupt_bytes = 0;
  std::uint64_t truncated_bytes = 0;    // of an unfinished block at the end
  std::uint64_t compacted_events = 0;   // not among `events`
  std::uint64_t compacted_until = 0;    // number of the first event that is not compacted; 0: none is
  std::int64_t compacted_until_ns = 0;  // time of the last compacted event
  std::uint64_t max_bytes = 0;          // size limit of the recording's files; 0: none
  bool bound_exceeded = false;          // the size limit was exceeded
  std::uint64_t keep_ns = 0;            // age up to which events were not to be compacted; 0: not set
  bool keeps_less = false;              // events were compacted before that age
  bool ended = false;                   // the recording was stopped, not killed
  bool spool_read = false;              // a spool of this session was read
  Counters counters{};                  // the latest

  std::uint64_t lost() const;
  // Return "corrupt" if parts of the file are corrupt; "gaps" if events were lost or blocks are missing; "truncated" if
  // the file ends before the recording did and no spool has the rest; else "complete".
  const char* state() const;
};

// Events with consecutive sequence numbers, decoded on demand.
struct Chunk {
  std::uint64_t first_sequence = 0;
  std::uint64_t event_count = 0;
  ClockAnchor begin{}, end{};
  std::uint64_t payload_offset = 0, payload_bytes = 0;  // in the file
  std::size_t spool_run = SIZE_MAX;                     // index into SpoolContents::runs; SIZE_MAX: in the file

  std::uint64_t end_sequence() const { return first_sequence + event_count; }
};

class TraceReader {
 public:
  // Paths at which the recorder wrote trace and spool, parsed from the header's JSON by the caller; "": not recorded.
  struct RecordedPaths {
    std::string trace, spool;
  };
  using PathsOfHeader = std::function<RecordedPaths(const std::string&)>;

  // Read the trace and its spool. Throws OpenError or FormatError, but not for corrupt blocks.
  // spool_path: if empty, TRACE.spool, else the path in the trace's header. progress: gets a fraction from 0 to 1.
  // end: for a recording of this process, the bytes of complete blocks to read; the spool is then not read.
  TraceReader(const std::string& path, const std::string& spool_path, const std::function<void(double)>& progress = {},
              const PathsOfHeader& paths_of_header = {}, std::uint64_t end = UINT64_MAX);

  const std::string& path() const { return path_; }
  const std::string& header_json() const { return header_json_; }  // "{}" if its block is missing
  const std::string& end_json() const { return end_json_; }
  const Definitions& definitions() const { return definitions_; }
  const Integrity& integrity() const { return integrity_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::uint64_t file_bytes() const { return file_.size(); }

  // Return the compacted part, without its summary, or no bytes. Throws OpenError, or FormatError (another version).
  Bytes read_compacted() const;
  std::uint64_t compacted_until() const { return integrity_.compacted_until; }
  // Return the offset of the first block that has events from `sequence` on; the file's size if there is none.
  std::uint64_t offset_of_events(std::uint64_t sequence) const;
  struct Damage {
    std::uint64_t blocks = 0, bytes = 0;
  };
  Damage damage_before(std::uint64_t offset) const;
  // Return the damage of the events that are compacted, from before their compaction.
  const Damage& compacted_damage() const { return compacted_damage_; }
  const InputFile& file() const { return file_; }
  const std::uint8_t (&session_id() const)[16] { return session_id_; }
  const ClockAnchor& first_anchor() const { return clock_.first(); }

  // For finish_trace. Return the spool, or nullptr.
  const SpoolContents* spool() const { return spool_ ? &*spool_ : nullptr; }
  const std::string& spool_path() const { return spool_path_; }
  // Return the original trace's path if the header named the spool, else "".
  const std::string& recorded_path() const { return recorded_path_; }
  // Return the bytes of complete blocks: without the one being written when the recording was killed.
  std::uint64_t complete_bytes() const { return complete_bytes_; }
  std::uint64_t next_sequence() const { return next_sequence_; }
  const ClockAnchor& last_anchor_of_file() const { return last_anchor_of_file_; }
  const ClockAnchor& last_anchor() const { return clock_.last(); }  // of file and spool

  // Decode the events of one chunk, in order, beginning with chunk.first_sequence. A stack, location or node type whose
  // definition is missing is 0. Thread-safe. Throws OpenError, or DecodeError if the payload is malformed.
  void decode(const Chunk& chunk, std::vector<Event>& out) const;

  ChunkClock clock_of(const Chunk& chunk) const { return clock_.between(chunk.begin, chunk.end); }
  // Return the first and the last wall clock time of the trace, in ns since 1970.
  std::int64_t begin_ns() const { return clock_.begin_ns(); }
  std::int64_t end_ns() const { return end_ns_; }

 private:
  void read_file_header(std::uint64_t& first_block);
  void scan_blocks(std::uint64_t offset, const std::function<void(double)>& progress);
  bool is_truncated_header(std::uint64_t offset) const;
  void record_damage(std::uint64_t begin, std::uint64_t end, bool is_truncated);
  std::uint64_t add_block_at(std::uint64_t offset, FileBlock& block);
  void add_block(const FileBlock& block);
  void add_compacted(const FileBlock& block);
  void add_chunk(const Chunk& chunk);
  void add_spool();
  void extend_end_to_spool();

  struct DamagedPart {
    std::uint64_t offset = 0, bytes = 0;
    bool is_new = false;  // not the continuation of the part before it
  };

  std::string path_, spool_path_, recorded_path_;
  InputFile file_;
  BlockScanner scanner_;
  std::uint8_t session_id_[16] = {};
  std::uint64_t compacted_offset_ = 0, compacted_bytes_ = 0;  // of the compacted part, without its summary
  std::uint64_t compacted_version_ = CompactionSummary::kVersion;
  std::vector<DamagedPart> damaged_parts_;
  Damage compacted_damage_;
  std::string header_json_ = "{}", end_json_ = "{}";
  Definitions definitions_;
  Integrity integrity_;
  std::vector<Chunk> chunks_;
  std::optional<SpoolContents> spool_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t corrupt_end_ = 0;      // end of the events in the last block with a corrupt payload
  std::uint64_t last_damage_end_ = 0;  // file offset: the end of the last corrupt part
  std::uint64_t complete_bytes_ = 0;
  TraceClock clock_;
  ClockAnchor last_anchor_of_file_{};
  std::int64_t end_ns_ = 0;
};

}  // namespace alloctrace
