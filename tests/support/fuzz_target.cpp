// What libFuzzer calls with bytes that it has chosen (tools/fuzz): a trace, and after it perhaps a spool.
//
// Of most inputs the magic numbers, lengths and checksums are put right first: what is behind them is to be found.
// Without ALLOCTRACE_LIBFUZZER it has a main of its own, which reads the files that it is given: so every compiler can
// run the corpus.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "../../csrc/core/base/crc32.h"
#include "../../csrc/core/format/spool_layout.h"
#include "read_everything.h"

namespace alloctrace {
namespace {

constexpr std::uint8_t kAsItIs = 0x80;  // in the first byte of the session: nothing is put right

// Where a spool begins in the input.
std::size_t end_of_trace(const Bytes& input) {
  const auto* const magic = reinterpret_cast<const std::uint8_t*>(kSpoolMagic);
  const auto found = std::search(input.begin(), input.end(), magic, magic + sizeof kSpoolMagic);
  return static_cast<std::size_t>(found - input.begin());
}

void put_right(Bytes& trace) {
  FileHeader header;
  std::memcpy(&header, trace.data(), sizeof header);
  std::memcpy(header.magic, kFileMagic, sizeof header.magic);
  header.format_version = kFoldedFormatVersion;
  header.header_crc = 0;
  header.header_crc = crc32(&header, sizeof header);
  std::memcpy(trace.data(), &header, sizeof header);
  for (std::size_t at = sizeof header; at + sizeof(BlockHeader) <= trace.size();) {
    BlockHeader block;
    std::memcpy(&block, &trace[at], sizeof block);
    const std::size_t left = trace.size() - at - sizeof block;
    block.magic = kBlockMagic;
    block.type = static_cast<BlockType>(static_cast<std::uint16_t>(block.type) % 8);
    block.payload_bytes = std::min<std::uint64_t>(block.payload_bytes, left);
    block.payload_crc = crc32(&trace[at] + sizeof block, block.payload_bytes);
    const std::size_t unchecked = offsetof(BlockHeader, header_crc) + sizeof block.header_crc;
    block.header_crc = crc32(reinterpret_cast<const std::uint8_t*>(&block) + unchecked, sizeof block - unchecked);
    std::memcpy(&trace[at], &block, sizeof block);
    at += sizeof block + block.payload_bytes;
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

#ifndef ALLOCTRACE_LIBFUZZER
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
