#include "block_file.h"

#include <unistd.h>

#include <cerrno>

#include "../base/crc32.h"

namespace alloctrace {

BlockFile::~BlockFile() {
  if (file_ >= 0) close(file_);
}

bool BlockFile::append(BlockHeader header, const Bytes& payload) {
  return append(header, std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

bool BlockFile::append(BlockHeader header, std::string_view payload) {
  header.magic = kBlockMagic;
  header.payload_bytes = payload.size();
  header.payload_crc = crc32(payload.data(), payload.size());
  header.begin = next_begin_;
  const std::size_t crc_begin = offsetof(BlockHeader, header_crc) + sizeof header.header_crc;
  header.header_crc = crc32(reinterpret_cast<const std::uint8_t*>(&header) + crc_begin, sizeof header - crc_begin);
  if (!write_at(&header, sizeof header, size_) || !write_at(payload.data(), payload.size(), size_ + sizeof header)) {
    // Remove the partial block: inside the file it would read as corruption.
    const int error = errno;
    [[maybe_unused]] const int result = ftruncate(file_, static_cast<off_t>(size_));
    errno = error;
    return false;
  }
  size_ += sizeof header + payload.size();
  next_begin_ = header.end;
  return true;
}

bool BlockFile::write_at(const void* data, std::size_t size, std::uint64_t offset) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = pwrite(file_, at, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    offset += static_cast<std::uint64_t>(written);
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace alloctrace
