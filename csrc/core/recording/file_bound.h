// Who keeps the trace below a size while it is written. What does so is not known here: it reads and replays the trace.
#pragma once

#include <cstdint>

namespace alloctrace {

class TraceFile;

class FileBound {
 public:
  virtual ~FileBound() = default;
  // Between two blocks, on the writer's thread. May put another file in the place of this one, or wait until there is
  // room. to_come: bytes that are written when the recording ends, whatever happens until then.
  virtual void between_blocks(TraceFile& file, std::uint64_t to_come) noexcept = 0;
  // The recording ends: nothing is put in place any more, and nothing is left beside the file.
  virtual void stop() noexcept = 0;
  // In a forked child, where none of its threads is: gives back its file descriptors.
  virtual void abandon_in_child() noexcept = 0;
};

}  // namespace alloctrace
