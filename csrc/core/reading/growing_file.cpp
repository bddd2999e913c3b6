#include "growing_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "../base/crc32.h"
#include "block_reading.h"
#include "trace_reader.h"

namespace alloctrace {
namespace {

constexpr std::uint64_t kSearchWindow = std::uint64_t{1} << 20;
// Maximum bytes of corrupt payloads read by one call, in file sizes: in a crafted file each header may claim the rest.
constexpr std::uint64_t kMaxWastedFactor = 16;

}  // namespace

GrowingFile::GrowingFile(const std::string& path) : path_(path) { open_at(path); }

void GrowingFile::open_at(const std::string& path) {
  auto file = std::make_unique<InputFile>(path);
  if (!file->is_open()) throw OpenError("cannot open " + path + ": " + file->error_text());
  FileHeader header{};
  if (!file->read(&header, sizeof header, 0) || !is_valid(header)) {
    throw FormatError(path + " is not an alloctrace trace, or its beginning is damaged");
  }
  check_version(header, path);
  struct stat status{};
  if (stat(path.c_str(), &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  file_ = std::move(file);
  file_header_ = header;
  offset_ = sizeof(FileHeader);
  may_be_compacted_ = true;
}

void GrowingFile::refresh() {
  struct stat status{};
  if (stat(path_.c_str(), &status) != 0) throw OpenError(path_ + " is gone");
  if (status.st_dev != device_ || status.st_ino != inode_ || static_cast<std::uint64_t>(status.st_size) < offset_) {
    const FileHeader before = file_header_;
    open_at(path_);
    if (std::memcmp(before.session_id, file_header_.session_id, sizeof before.session_id) != 0) {
      throw OpenError(path_ + " is of another recording now: begin again");
    }
    return;
  }
  file_->refresh_size();
}

bool GrowingFile::read_block(std::uint64_t offset, BlockHeader& header, Bytes& payload) const {
  if (!read_block_header(*file_, offset, header) || header.payload_bytes > file_->size() - offset - sizeof header)
    return false;
  payload.resize(header.payload_bytes);
  return file_->read(payload.data(), payload.size(), offset + sizeof header) &&
         crc32(payload.data(), payload.size()) == header.payload_crc;
}

bool GrowingFile::next(BlockHeader& header, Bytes& payload) {
  while (next_complete(header, payload)) {
    const bool is_misplaced = header.type == BlockType::kCompacted && !may_be_compacted_;
    may_be_compacted_ = may_be_compacted_ && may_precede_compacted(header);
    if (!is_misplaced) return true;
    ++corrupt_blocks_;
  }
  return false;
}

bool GrowingFile::next_complete(BlockHeader& header, Bytes& payload) {
  if (read_block(offset_, header, payload)) {
    offset_ += sizeof header + header.payload_bytes;
    return true;
  }
  // Most likely the block is still being written. It is corrupt if a complete block follows.
  Bytes window;
  std::uint64_t wasted_bytes = 0;
  for (std::uint64_t offset = offset_ + 1; offset < file_->size(); offset += kSearchWindow) {
    window.resize(std::min<std::uint64_t>(kSearchWindow + sizeof kBlockMagic - 1, file_->size() - offset));
    if (!file_->read(window.data(), window.size(), offset)) return false;
    for (std::size_t at = 0; at + sizeof kBlockMagic <= window.size(); ++at) {
      if (std::memcmp(window.data() + at, &kBlockMagic, sizeof kBlockMagic) != 0) continue;
      payload.clear();
      if (!read_block(offset + at, header, payload)) {
        wasted_bytes += payload.size();
        if (wasted_bytes / kMaxWastedFactor > file_->size()) return false;
        continue;
      }
      ++corrupt_blocks_;
      offset_ = offset + at + sizeof header + header.payload_bytes;
      return true;
    }
  }
  return false;
}

}  // namespace alloctrace
