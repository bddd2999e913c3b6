// Who keeps the trace below a size while it is written. What does so is not known here: it reads and replays the trace.
#pragma once

#include <cstdint>
#include <functional>

namespace alloctrace {

class TraceFile;

class FileBound {
 public:
  virtual ~FileBound() = default;
  // Between two blocks, on the writer's thread. May put another file in the place of this one, or wait until there is
  // room, but not once `is_urgent` says that the recording ends. to_come: bytes that are written when it does, whatever
  // happens until then.
  virtual void between_blocks(TraceFile& file, std::uint64_t to_come,
                              const std::function<bool()>& is_urgent) noexcept = 0;
  // The recording ends: nothing is put in place any more, and nothing is left beside the file.
  virtual void stop() noexcept = 0;
};

}  // namespace alloctrace
