#include "finish_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "../base/unnamed_file.h"
#include "../format/event_codec.h"
#include "../format/trace_file.h"

namespace alloctrace {
namespace {

constexpr const char* kStillRecording = "it is still being recorded";

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw FinishError(path + " cannot be finished: " + what);
}

// An existing trace, open for appending.
class KilledTrace : public BlockFile {
 public:
  // Lock the trace. Fails while the recorder runs, which holds the lock.
  explicit KilledTrace(const std::string& path) : BlockFile({}), path_(path) {
    file_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file_ < 0) fail(path, std::strerror(errno));
    is_locked_ = relock(file_, LOCK_EX);
    if (!is_locked_ && errno == EWOULDBLOCK) fail(path, kStillRecording);
  }
  // Return false if the file system has no locks.
  bool is_locked() const { return is_locked_; }

  // Remove the truncated block after `size`.
  void truncate_to(std::uint64_t size) {
    if (ftruncate(file_, static_cast<off_t>(size)) != 0) fail(path_, std::strerror(errno));
    size_ = size;
  }

  // Append a block with the given first anchor: events get the same times as in the spool.
  template <typename Payload>
  void append_block(BlockHeader header, const Payload& payload, const ClockAnchor& begin) {
    next_begin_ = begin;
    if (!append(header, payload)) fail(path_, std::strerror(errno));
  }

  void sync() {
    if (fsync(file_) != 0 && errno != EINVAL) fail(path_, std::strerror(errno));
  }

 private:
  std::string path_;
  bool is_locked_ = false;
};

// The lock that the recorder holds on its spool as long as it runs. A copy of the trace has no lock.
class SpoolLock {
 public:
  SpoolLock(const std::string& trace, const std::string& spool) {
    file_ = open(spool.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file_ < 0) file_ = open(spool.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    is_locked_ = file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0;
    if (file_ >= 0 && !is_locked_ && errno == EWOULDBLOCK) {
      close(file_);
      fail(trace,
           "its spool " + spool + " is in use, by the recording or by another `finish`: try again when that has ended");
    }
  }
  ~SpoolLock() {
    if (file_ >= 0) close(file_);
  }
  SpoolLock(const SpoolLock&) = delete;
  SpoolLock& operator=(const SpoolLock&) = delete;
  bool is_locked() const { return is_locked_; }

 private:
  int file_ = -1;
  bool is_locked_ = false;
};

bool is_same_file(const std::string& path, const std::string& other_path) {
  struct stat first{}, second{};
  return stat(path.c_str(), &first) == 0 && stat(other_path.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

void refuse_unless_ended(const std::string& path, const ProcessIdentity& recorder) {
  switch (state_of(recorder)) {
    case ProcessState::kEnded:
      return;
    case ProcessState::kRunning:
      fail(path, kStillRecording);
    case ProcessState::kUnknown:
      fail(path,
           "its file system has no locks, and the recording may still run on another machine or in another container: "
           "use --force once it has ended");
  }
}

// Return whether the spool has changed since it was read: the recording was still running then.
bool has_changed(const SpoolContents& before, const SpoolContents& now) {
  return before.first_sequence != now.first_sequence || before.next_sequence != now.next_sequence ||
         before.uncommitted != now.uncommitted || before.definitions != now.definitions;
}

// Return the spool's events that are not in the file. For a call in progress, whose number is unused, an event of no
// kind is inserted: readers would count a gap as missing events.
std::vector<Event> unwritten_events(const TraceReader& reader, std::uint64_t first) {
  std::vector<Event> all, run;
  for (const Chunk& chunk : reader.chunks()) {
    if (chunk.spool_run == SIZE_MAX) {
      first = std::max(first, chunk.end_sequence());
      continue;
    }
    reader.decode(chunk, run);
    while (first + all.size() < chunk.first_sequence) {
      Event none{};
      none.time = all.empty() ? run.front().time : all.back().time;
      all.push_back(none);
    }
    all.insert(all.end(), run.begin(), run.end());
  }
  return all;
}

}  // namespace

FinishedTrace finish_trace(const std::string& path, const std::string& spool_path,
                           const TraceReader::PathsOfHeader& paths_of_header, bool force) {
  KilledTrace trace(path);
  const TraceReader reader(path, spool_path, {}, paths_of_header);
  const Integrity& integrity = reader.integrity();
  const SpoolContents* const spool = reader.spool();
  FinishedTrace result;
  result.was_ended = integrity.ended;
  if (!spool) {
    if (integrity.ended) return result;
    fail(path, "its spool is not there. If it was moved, give its path; else the trace ends where its file ends");
  }
  const SpoolLock lock(path, reader.spool_path());
  const std::optional<SpoolContents> locked = read_spool(reader.spool_path(), reader.session_id());
  if (!locked || has_changed(*spool, *locked))
    fail(path, "its recording has just ended: run `alloctrace finish` again");
  if (!force && !(trace.is_locked() && lock.is_locked())) refuse_unless_ended(path, locked->recorder);
  const std::vector<Event> events = unwritten_events(reader, spool->first_sequence);
  if (!integrity.ended) {
    const ClockAnchor begin = reader.last_anchor_of_file();
    BlockHeader header{};
    header.counters = integrity.counters;
    header.first_sequence = reader.next_sequence() - events.size();
    trace.truncate_to(reader.complete_bytes());
    // The times of the spool's events follow from the file's last anchor, which must not change before all of them are
    // written: the definitions block ends at its begin anchor, and the events are one block.
    header.type = BlockType::kDefinitions;
    header.end = begin;
    if (!spool->definitions.empty()) trace.append_block(header, spool->definitions, begin);
    header.type = BlockType::kEvents;
    header.end = reader.last_anchor();
    header.event_count = events.size();
    EventEncoder encoder;
    const Bytes& payload = encoder.encode(events, {}, begin.counter);
    if (payload.size() > kMaxPayloadBytes) fail(path, "its spool has more events than a block can have");
    if (!events.empty()) trace.append_block(header, payload, begin);
    header.first_sequence += events.size();
    header.event_count = 0;
    header.type = BlockType::kEnd;
    trace.append_block(header, R"({"reason": "killed", "uncommitted": )" + std::to_string(integrity.uncommitted) + "}",
                       begin);
    trace.sync();
    result.events = integrity.recovered;
    result.uncommitted = integrity.uncommitted;
  }
  unlink((path + ".compaction").c_str());  // left by a compaction that was interrupted
  result.spool_path = reader.spool_path();
  if (!reader.recorded_path().empty() && !is_same_file(path, reader.recorded_path())) {
    result.recorded_path = reader.recorded_path();
    return result;
  }
  if (unlink(reader.spool_path().c_str()) != 0) {
    throw FinishError(path + " is finished, but its spool " + reader.spool_path() +
                      " cannot be removed: " + std::strerror(errno));
  }
  return result;
}

}  // namespace alloctrace
