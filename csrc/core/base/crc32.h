// CRC-32 with the polynomial of zlib, gzip and PNG, so that any language's library can check a block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace alloctrace {

std::uint32_t crc32(const void* data, std::size_t size, std::uint32_t seed = 0);

}  // namespace alloctrace
