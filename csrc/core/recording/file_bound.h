// Size limit of a growing trace. An interface: the implementation (csrc/core/bounding) depends on the trace reader.
#pragma once

#include <cstdint>
#include <functional>

namespace alloctrace {

class TraceFile;

class FileBound {
 public:
  virtual ~FileBound() = default;
  // Replace the file by a compacted one, or wait for room, if the limit requires it. Called on the writer thread
  // between two blocks. Must not wait once `is_ending` returns true. closing_bytes: what the end of the recording adds.
  virtual void between_blocks(TraceFile& file, std::uint64_t closing_bytes,
                              const std::function<bool()>& is_ending) noexcept = 0;
  // Stop replacing the file and remove any file beside it: the recording ends.
  virtual void stop() noexcept = 0;
};

}  // namespace alloctrace
