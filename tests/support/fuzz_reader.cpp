// Reads damaged copies of a trace and its spool, built with address and undefined-behaviour sanitizers.
//
//   fuzz_reader TRACE SPOOL FOLDER ROUNDS SEED
//
// Each round damages fresh copies of the files, writes them into FOLDER and reads everything that a reader offers. Half
// of the rounds mend the checksums afterwards, so that the damage gets past them to the decoders. Prints how many
// rounds ended in which way; a sanitizer's finding, an unexpected exception or a sum that is wrong ends it with a
// message and a status other than 0.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../../csrc/core/base/crc32.h"
#include "../../csrc/core/format/event_codec.h"
#include "read_everything.h"

namespace alloctrace {
namespace {

using Random = std::mt19937_64;

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

constexpr unsigned kLongestRound = 60;  // seconds

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

std::uint64_t odd_value(Random& random) {
  constexpr std::uint64_t kOdd[] = {
      0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, std::uint64_t{1} << 63, UINT64_MAX};
  return kOdd[below(random, std::size(kOdd))];
}

// Damage that keeps the size, within [begin, end).
void overwrite(Bytes& bytes, std::size_t begin, std::size_t end, Random& random) {
  if (end <= begin) return;
  const std::size_t at = begin + below(random, end - begin);
  const std::size_t size = std::min<std::size_t>(1 + below(random, 40), end - at);
  switch (random() % 4) {
    case 0:
      bytes[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
      break;
    case 1: {
      const std::uint64_t value = odd_value(random);
      std::memcpy(&bytes[at], &value, std::min<std::size_t>(std::size_t{1} << random() % 4, end - at));
      break;
    }
    case 2:
      for (std::size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<std::uint8_t>(random());
      break;
    default:
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), size,
                  static_cast<std::uint8_t>(random() % 2 ? 0xff : 0));
      break;
  }
}

// Damage that moves what follows.
void cut_or_shift(Bytes& bytes, Random& random) {
  const auto at = static_cast<std::ptrdiff_t>(below(random, bytes.size()));
  const auto size = static_cast<std::ptrdiff_t>(
      std::min<std::size_t>(1 + below(random, 400), bytes.size() - static_cast<std::size_t>(at)));
  switch (random() % 4) {
    case 0:
      bytes.resize(static_cast<std::size_t>(at));
      break;
    case 1:
      bytes.erase(bytes.begin() + at, bytes.begin() + at + size);
      break;
    case 2: {
      const Bytes repeated(bytes.begin() + at, bytes.begin() + at + size);
      bytes.insert(bytes.begin() + at, repeated.begin(), repeated.end());
      break;
    }
    default: {
      Bytes garbage(static_cast<std::size_t>(size));
      for (std::uint8_t& byte : garbage) byte = static_cast<std::uint8_t>(random());
      bytes.insert(bytes.begin() + at, garbage.begin(), garbage.end());
      break;
    }
  }
}

std::vector<std::size_t> block_offsets(const Bytes& trace) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = sizeof(FileHeader); at + sizeof(BlockHeader) <= trace.size();) {
    BlockHeader header;
    std::memcpy(&header, &trace[at], sizeof header);
    offsets.push_back(at);
    at += sizeof header + header.payload_bytes;
  }
  return offsets;
}

// Damages one block's payload, or its header's fields, and makes its checksums right again. `offsets`: where blocks
// begin, which is not asked of the bytes, since they may be damaged already.
void damage_behind_checksums(Bytes& trace, const std::vector<std::size_t>& offsets, Random& random) {
  const std::size_t number = below(random, offsets.size());
  const std::size_t at = offsets[number], payload = at + sizeof(BlockHeader);
  const std::size_t end = number + 1 < offsets.size() ? offsets[number + 1] : trace.size();
  if (random() % 4 == 0)
    overwrite(trace, at + offsetof(BlockHeader, type), payload, random);
  else
    overwrite(trace, payload, end, random);
  BlockHeader header;
  std::memcpy(&header, &trace[at], sizeof header);
  header.payload_crc = crc32(&trace[payload], end - payload);
  const std::size_t unchecked = offsetof(BlockHeader, header_crc) + sizeof header.header_crc;
  header.header_crc = crc32(reinterpret_cast<const std::uint8_t*>(&header) + unchecked, sizeof header - unchecked);
  std::memcpy(&trace[at], &header, sizeof header);
}

// The decoders alone, on bytes of any size: what the checksums would otherwise keep from them.
void decode_damaged(const Bytes& trace, const std::vector<std::size_t>& offsets, Random& random) {
  const std::size_t at = offsets[below(random, offsets.size())];
  BlockHeader header;
  std::memcpy(&header, &trace[at], sizeof header);
  const auto begin = trace.begin() + static_cast<std::ptrdiff_t>(at + sizeof header);
  Bytes payload(begin, begin + static_cast<std::ptrdiff_t>(header.payload_bytes));
  if (!payload.empty()) cut_or_shift(payload, random);
  overwrite(payload, 0, payload.size(), random);
  try {
    std::vector<Event> events;
    decode_events(payload.data(), payload.size(), header.event_count, header.begin.counter, events);
  } catch (const DecodeError&) {
  }
  try {
    Definitions names;
    names.limit_ids(payload.size());
    names.add(payload.data(), payload.size());
  } catch (const DecodeError&) {
  }
}

int run(const std::string& trace_path, const std::string& spool_path, const std::string& folder, std::uint64_t rounds,
        std::uint64_t seed) {
  const Bytes trace = read_file(trace_path), spool = read_file(spool_path);
  const std::vector<std::size_t> offsets = block_offsets(trace);
  if (offsets.size() < 3 || spool.empty()) fail("there is nothing to damage");
  const std::string path = folder + "/damaged.alloctrace";
  std::map<std::string, std::uint64_t> outcomes;
  Random random(seed);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Bytes damaged = trace, damaged_spool = spool;
    const std::size_t times = 1 + below(random, 3);
    for (std::size_t i = 0; i < times; ++i) {
      switch (random() % 6) {
        case 0:
          overwrite(damaged, 0, damaged.size(), random);
          break;
        case 1:
          if (!damaged.empty()) cut_or_shift(damaged, random);
          break;
        case 2:
          overwrite(damaged_spool, 64 * below(random, 2), damaged_spool.size(), random);
          break;
        default:
          if (damaged.size() == trace.size()) damage_behind_checksums(damaged, offsets, random);
          break;
      }
    }
    // The spool's header is a small part of it, and the part that is believed.
    if (random() % 3 == 0) overwrite(damaged_spool, 32, 400, random);
    if (random() % 20 == 0 && !damaged_spool.empty()) cut_or_shift(damaged_spool, random);
    write_file(path, damaged);
    write_file(path + ".spool", damaged_spool);
    alarm(kLongestRound);  // ends it where a round hangs
    ++outcomes[read_everything(path)];
    decode_damaged(trace, offsets, random);
  }
  for (const auto& [outcome, count] : outcomes)
    std::printf("%s %llu\n", outcome.c_str(), static_cast<unsigned long long>(count));
  return 0;
}

}  // namespace
}  // namespace alloctrace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  return alloctrace::run(arguments[1], arguments[2], arguments[3], std::strtoull(arguments[4], nullptr, 10),
                         std::strtoull(arguments[5], nullptr, 10));
}
