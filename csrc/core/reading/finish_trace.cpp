#include "finish_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "../format/block_file.h"
#include "../format/event_codec.h"

namespace alloctrace {
namespace {

constexpr std::size_t kBlockEvents = 65'536;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw FinishError(path + " cannot be finished: " + what);
}

// A trace that exists, open for appending.
class KilledTrace : public BlockFile {
 public:
  // Locks it. The recorder holds the lock as long as it runs.
  explicit KilledTrace(const std::string& path) : BlockFile({}), path_(path) {
    file_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file_ < 0) fail(path, std::strerror(errno));
    if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) fail(path, "it is still being recorded");
  }

  // What lies behind `size`, a torn block, goes.
  void continue_at(std::uint64_t size) {
    if (ftruncate(file_, static_cast<off_t>(size)) != 0) fail(path_, std::strerror(errno));
    size_ = size;
  }

  // All blocks are from the same two anchors: their events then have the times that they have in the spool.
  template <typename Payload>
  void write(BlockHeader header, const Payload& payload, const ClockAnchor& begin) {
    next_begin_ = begin;
    if (!append(header, payload)) fail(path_, std::strerror(errno));
  }

  void sync() {
    if (fsync(file_) != 0 && errno != EINVAL) fail(path_, std::strerror(errno));
  }

 private:
  std::string path_;
};

// The lock that the recorder holds on its spool as long as it runs. A copy of a running trace is not locked itself.
class SpoolLock {
 public:
  SpoolLock(const std::string& trace, const std::string& spool) {
    file_ = open(spool.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file_ < 0) file_ = open(spool.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
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

 private:
  int file_ = -1;
};

bool is_same_file(const std::string& path, const std::string& other_path) {
  struct stat first{}, second{};
  return stat(path.c_str(), &first) == 0 && stat(other_path.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// Return whether a recording that ran when the spool was read has ended since, and left more in it.
bool has_changed(const SpoolContents& before, const SpoolContents& now) {
  return before.first_sequence != now.first_sequence || before.next_sequence != now.next_sequence ||
         before.uncommitted != now.uncommitted || before.definitions != now.definitions;
}

// The events of the spool that are not in the file, without breaks: a call in progress, which left its number unused,
// is an event of no kind. A break would read as events that are missing.
std::vector<Event> tail_events(const TraceReader& reader) {
  std::vector<Event> all, run;
  std::uint64_t first = 0;
  for (const Chunk& chunk : reader.chunks()) {
    if (chunk.spool_run == SIZE_MAX) continue;
    if (all.empty()) first = chunk.first_sequence;
    reader.decode(chunk, run);
    while (first + all.size() < chunk.first_sequence) {
      Event none{};
      none.time = all.back().time;
      all.push_back(none);
    }
    all.insert(all.end(), run.begin(), run.end());
  }
  return all;
}

}  // namespace

FinishedTrace finish_trace(const std::string& path, const std::string& spool_path,
                           const TraceReader::PathsOfHeader& paths_of_header) {
  KilledTrace trace(path);
  const TraceReader reader(path, spool_path, {}, paths_of_header);
  const Integrity& integrity = reader.integrity();
  const SpoolContents* const spool = reader.spool();
  FinishedTrace done;
  done.was_ended = integrity.ended;
  if (!spool) {
    if (integrity.ended) return done;
    fail(path, "its spool is not there. If it was moved, give its path; else the trace ends where its file ends");
  }
  const SpoolLock lock(path, reader.spool_path());
  const std::optional<SpoolContents> locked = read_spool(reader.spool_path(), reader.session_id());
  if (!locked || has_changed(*spool, *locked))
    fail(path, "its recording has just ended: run `alloctrace finish` again");
  const std::vector<Event> events = tail_events(reader);
  if (!integrity.ended) {
    const ClockAnchor begin = reader.last_anchor_of_file();
    BlockHeader header{};
    header.counters = integrity.counters;
    header.end = reader.last_anchor();
    header.first_sequence = reader.next_sequence() - events.size();
    trace.continue_at(reader.whole_bytes());
    header.type = BlockType::kDefinitions;
    if (!spool->definitions.empty()) trace.write(header, spool->definitions, begin);
    EventEncoder encoder;
    header.type = BlockType::kEvents;
    for (std::span<const Event> left(events); !left.empty();) {
      const auto some = left.first(std::min(left.size(), kBlockEvents));
      header.event_count = some.size();
      trace.write(header, encoder.encode(some, {}, begin.counter), begin);
      header.first_sequence += some.size();
      left = left.subspan(some.size());
    }
    header.event_count = 0;
    header.type = BlockType::kEnd;
    trace.write(header, R"({"reason": "killed", "uncommitted": )" + std::to_string(integrity.uncommitted) + "}", begin);
    trace.sync();
    done.events = integrity.recovered;
    done.uncommitted = integrity.uncommitted;
  }
  unlink((path + ".folding").c_str());  // that it was folding into when it was killed
  done.spool = reader.spool_path();
  if (!reader.recorded_path().empty() && !is_same_file(path, reader.recorded_path())) {
    done.recorded_path = reader.recorded_path();
    return done;
  }
  if (unlink(reader.spool_path().c_str()) != 0) {
    throw FinishError(path + " is finished, but its spool " + reader.spool_path() +
                      " cannot be removed: " + std::strerror(errno));
  }
  return done;
}

}  // namespace alloctrace
