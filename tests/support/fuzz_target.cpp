// What libFuzzer calls with bytes that it has chosen (tools/fuzz): a trace, and after it perhaps a spool.
//
// Of most inputs the magic numbers, lengths and checksums are put right first: what is behind them is to be found.
// Without ALLOCTRACE_LIBFUZZER it has a main of its own, which reads the files that it is given: so every compiler can
// run the corpus.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/core/base/crc32.h"
#include "../../csrc/core/compaction/compacted_trace.h"
#include "../../csrc/core/follow/follower.h"
#include "../../csrc/core/format/event_codec.h"
#include "../../csrc/core/format/format.h"
#include "../../csrc/core/reading/trace_reader.h"
#include "../../csrc/core/replay/replay_run.h"
#include "../../csrc/core/what_if/predict.h"

namespace alloctrace {
namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// As `alloctrace live` reads it: what there is, and then once more.
void follow(const std::string& path, const std::string& spool) {
  try {
    Follower follower(path, [](const Followed&) {});
    follower.read_spool_at(spool);
    const std::atomic<bool> cancelled = false;
    for (int times = 0; times < 2; ++times) follower.advance(cancelled);
  } catch (const FormatError&) {
  } catch (const OpenError&) {
  }
}

// Compact a trace up to its middle, and that once more. The compacted trace can be read, and ends with the same memory;
// but where a block cannot be decoded, one that repeats some of its events may be taken once the compacted part ends in
// it.
void compact_and_compare(const std::shared_ptr<const TraceReader>& trace, const ReplayRun& whole, bool compare,
                         int times = 2) {
  const std::string out = "/dev/shm/alloctrace_fuzz." + std::to_string(getpid()) + "." + std::to_string(times);
  const std::uint64_t begin = trace->compacted_until();
  const std::uint64_t end = trace->chunks().empty() ? begin : trace->chunks().back().end_sequence();
  if (end <= begin) return;
  try {
    compact_trace(trace, begin + (end - begin) / 2 + 1, out, true, {}, {});
  } catch (const CompactionError&) {
    return;
  }
  const auto compacted = std::make_shared<const TraceReader>(out, "");
  unlink(out.c_str());
  const ReplayRun again(compacted, 50);
  if (times > 1) compact_and_compare(compacted, again, compare, times - 1);
  if (!compare) return;
  const std::vector<DeviceMemory>&before = whole.end().devices(), &after = again.end().devices();
  if (before.size() != after.size()) fail("compaction changed the devices");
  for (std::size_t index = 0; index < before.size(); ++index) {
    const MemoryTotals &one = before[index].totals(), &other = after[index].totals();
    if (one.requested != other.requested || one.allocated != other.allocated || one.active != other.active ||
        one.reserved != other.reserved || one.blocks != other.blocks) {
      fail("compaction changed the memory at the end");
    }
  }
}

// Reads all that the readers of csrc/core offer of one trace. What no file may bring about ends the program.
void read_everything(const std::string& path, const std::string& spool) {
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
        } catch (const CompactedError&) {
        }
      }
      states.release();
      for (const std::uint64_t moment : run->compacted_positions()) static_cast<void>(states.before(moment));
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
    GroupOptions options;
    options.points = 20;
    options.begin_ns = trace.begin_ns();
    options.end_ns = trace.end_ns();
    options.site_of_stack = {{0, 1, 0}};
    options.site_count = 2;
    options.with_extremes = true;
    static_cast<void>(replayed.group_timelines(options));
    static_cast<void>(replayed.role_allocations(events / 4, events / 2));
    for (const DeviceMemory& device : replayed.end().devices()) {
      std::vector<SegmentView> segments;
      std::vector<Piece> blocks;
      device.list(segments, blocks);
      std::vector<what_if::SimulationOptions> simulations(5);
      simulations[1].settings = R"({"expandable_segments": true})";
      simulations[1].capacity = std::uint64_t{40} << 30;
      simulations[2].order = what_if::AddressOrder::kHighest;
      simulations[3].order = what_if::AddressOrder::kRandom;
      simulations[4].order = what_if::AddressOrder::kRecorded;
      static_cast<void>(what_if::predict(opened, device.device_type(), device.device_index(), {}, simulations));
    }
    compact_and_compare(opened, replayed, all_decoded);
    static_cast<void>(trace.integrity().state());
  } catch (const FormatError&) {
  } catch (const OpenError&) {
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

constexpr std::uint8_t kAsItIs = 0x80;  // in the first byte of the session: nothing is put right

// Where a spool begins in the input.
std::size_t end_of_trace(const Bytes& input) {
  const auto* const magic = reinterpret_cast<const std::uint8_t*>(kSpoolMagic);
  const auto found = std::search(input.begin(), input.end(), magic, magic + sizeof kSpoolMagic);
  return static_cast<std::size_t>(found - input.begin());
}

// Where each block of a trace begins, and where the last one ends: whatever the lengths in their headers say.
std::vector<std::size_t> borders_of_blocks(const Bytes& trace) {
  std::vector<std::size_t> borders{sizeof(FileHeader)};
  while (borders.back() + sizeof(BlockHeader) <= trace.size()) {
    BlockHeader block;
    std::memcpy(&block, &trace[borders.back()], sizeof block);
    const std::size_t payload = borders.back() + sizeof block;
    borders.push_back(payload + std::min<std::uint64_t>(block.payload_bytes, trace.size() - payload));
  }
  return borders;
}

void put_right(Bytes& trace) {
  FileHeader header;
  std::memcpy(&header, trace.data(), sizeof header);
  std::memcpy(header.magic, kFileMagic, sizeof header.magic);
  header.format_version = kCompactedFormatVersion;
  header.header_crc = 0;
  header.header_crc = crc32(&header, sizeof header);
  std::memcpy(trace.data(), &header, sizeof header);
  const std::vector<std::size_t> borders = borders_of_blocks(trace);
  for (std::size_t number = 0; number + 1 < borders.size(); ++number) {
    const std::size_t at = borders[number];
    BlockHeader block;
    std::memcpy(&block, &trace[at], sizeof block);
    block.magic = kBlockMagic;
    block.type = static_cast<BlockType>(static_cast<std::uint16_t>(block.type) % 8);
    block.payload_bytes = borders[number + 1] - at - sizeof block;
    block.payload_crc = crc32(trace.data() + at + sizeof block, block.payload_bytes);
    const std::size_t unchecked = offsetof(BlockHeader, header_crc) + sizeof block.header_crc;
    block.header_crc = crc32(reinterpret_cast<const std::uint8_t*>(&block) + unchecked, sizeof block - unchecked);
    std::memcpy(&trace[at], &block, sizeof block);
  }
}

class Memory {
 public:
  explicit Memory(const char* name) : file_(memfd_create(name, MFD_CLOEXEC)) {}
  ~Memory() { close(file_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::string hold(const std::uint8_t* bytes, std::size_t size) const {
    if (ftruncate(file_, 0) != 0 || pwrite(file_, bytes, size, 0) != static_cast<ssize_t>(size)) fail("no memory");
    return "/proc/self/fd/" + std::to_string(file_);
  }

 private:
  int file_;
};

void read_input(const std::uint8_t* data, std::size_t size) {
  if (size < sizeof(FileHeader)) return;
  Bytes trace(data, data + size);
  const std::size_t end = end_of_trace(trace);
  Bytes spool(trace.begin() + static_cast<std::ptrdiff_t>(end), trace.end());
  trace.resize(end);
  if (trace.size() < sizeof(FileHeader)) return;
  if ((trace[offsetof(FileHeader, session_id)] & kAsItIs) == 0) put_right(trace);
  if (spool.size() >= sizeof(SpoolHeader)) {
    std::memcpy(&spool[offsetof(SpoolHeader, session_id)], &trace[offsetof(FileHeader, session_id)], 16);
  }
  static const Memory trace_file("trace"), spool_file("spool");
  read_everything(trace_file.hold(trace.data(), trace.size()), spool_file.hold(spool.data(), spool.size()));
}

}  // namespace
}  // namespace alloctrace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  alloctrace::read_input(data, size);
  return 0;
}

#ifdef ALLOCTRACE_LIBFUZZER
#include <random>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace alloctrace {
namespace {

using Dice = std::minstd_rand;

// A whole block stands in another place, or in a second one: a compacted part among events, events twice.
Bytes with_moved_block(const Bytes& input, const std::vector<std::size_t>& borders, Dice& dice) {
  const std::size_t block = dice() % (borders.size() - 1), to = borders[dice() % borders.size()];
  const bool stays = dice() % 2 == 0;
  Bytes made;
  const auto copy = [&](std::size_t begin, std::size_t limit) {
    made.insert(made.end(), input.data() + begin, input.data() + limit);
  };
  for (std::size_t at = 0; at <= borders.size(); ++at) {
    const std::size_t begin = at == 0 ? 0 : borders[at - 1], limit = at == borders.size() ? input.size() : borders[at];
    if (at != 0 && begin == to) copy(borders[block], borders[block + 1]);
    if (at != block + 1 || stays) copy(begin, limit);
  }
  return made;
}

void change_one(std::vector<Event>& events, Dice& dice) {
  const std::size_t at = dice() % events.size();
  Event& event = events[at];
  const Event& other = events[dice() % events.size()];
  switch (dice() % 8) {
    case 0:
      events.insert(events.begin() + static_cast<std::ptrdiff_t>(dice() % events.size()), Event(event));
      break;
    case 1:
      if (events.size() > 1) events.erase(events.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 2:
      std::swap(event, events[dice() % events.size()]);
      break;
    case 3:
      event.kind = static_cast<EventKind>(dice() % 40);
      break;
    case 4:
      event.address = other.address;
      break;
    case 5:
      event.location = other.location;
      break;
    case 6:
      event.size = dice() % 2 == 0 ? other.size : event.size << dice() % 16;
      break;
    default:
      event.address += other.size;
  }
}

// The events of a block are others, and it is whole: what one event is lies in several columns, which no change of
// bytes meets at once.
Bytes with_other_events(const Bytes& input, const std::vector<std::size_t>& borders, Dice& dice) {
  constexpr std::uint64_t kMostEvents = 3000;
  const std::size_t number = dice() % (borders.size() - 1), payload = borders[number] + sizeof(BlockHeader);
  BlockHeader header;
  std::memcpy(&header, &input[borders[number]], sizeof header);
  std::vector<Event> events;
  if (header.type != BlockType::kEvents || header.event_count == 0 || header.event_count > kMostEvents) return input;
  try {
    decode_events(input.data() + payload, borders[number + 1] - payload, header.event_count, header.begin.counter,
                  events);
  } catch (const DecodeError&) {
    return input;
  }
  for (unsigned left = 1 + dice() % 4; left > 0; --left) change_one(events, dice);
  EventEncoder encoder;
  const Bytes& columns = encoder.encode(events, {}, header.begin.counter);
  const std::uint64_t more = events.size() - header.event_count;  // may be less: then it wraps
  header.event_count = events.size();
  header.payload_bytes = columns.size();
  Bytes made(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(payload));
  std::memcpy(&made[borders[number]], &header, sizeof header);
  made.insert(made.end(), columns.begin(), columns.end());
  made.insert(made.end(), input.begin() + static_cast<std::ptrdiff_t>(borders[number + 1]), input.end());
  // The blocks behind it begin as many events later.
  const std::size_t shift = payload + columns.size() - borders[number + 1];
  for (std::size_t later = number + 1; later + 1 < borders.size(); ++later) {
    std::uint8_t* const first = &made[borders[later] + shift + offsetof(BlockHeader, first_sequence)];
    std::uint64_t sequence;
    std::memcpy(&sequence, first, sizeof sequence);
    sequence += more;
    std::memcpy(first, &sequence, sizeof sequence);
  }
  return made;
}

}  // namespace
}  // namespace alloctrace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  alloctrace::Dice dice(seed);
  const alloctrace::Bytes input(data, data + size);
  const auto end = static_cast<std::ptrdiff_t>(alloctrace::end_of_trace(input));
  const std::vector<std::size_t> borders = alloctrace::borders_of_blocks({input.begin(), input.begin() + end});
  const unsigned chosen = dice() % 8;
  if (chosen > 3 || borders.size() < 2) return LLVMFuzzerMutate(data, size, most);
  const alloctrace::Bytes made = chosen == 0 ? alloctrace::with_moved_block(input, borders, dice)
                                             : alloctrace::with_other_events(input, borders, dice);
  if (made.size() > most || made == input) return LLVMFuzzerMutate(data, size, most);
  std::copy(made.begin(), made.end(), data);
  return made.size();
}
#else
#include <fstream>
#include <iterator>

int main(int count, char** names) {
  for (int number = 1; number < count; ++number) {
    std::ifstream file(names[number], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::fprintf(stderr, "%s\n", names[number]);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
}
#endif
