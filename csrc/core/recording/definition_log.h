// Byte ring of definition records from the hooks to the writer. The ring is part of the spool: the definitions that an
// event refers to survive a killed process together with the event.
//
// Contract of the ring: append() stores its records completely or not at all, in the order in which threads get the
// mutex, and moves `head` past them by a release store; the reader sees records up to `head`. A full log discards new
// records, never stored ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "../base/varint.h"
#include "../format/format.h"

namespace alloctrace {

class DefinitionLog {
 public:
  // `bytes` and `state` are spool memory and must outlive this object. `wake` asks the writer to make room.
  DefinitionLog(std::uint8_t* bytes, std::size_t capacity, DefinitionLogState& state, std::uint64_t wait_ns,
                std::function<void()> wake);

  // Append complete records, from any thread. Waits for room for at most wait_ns. Returns false and stores nothing if
  // the log stays full or the records are larger than the log.
  bool append(const Bytes& records) noexcept;

  // Append the bytes between tail and head to `out`, and return head. Only the writer calls it; it passes that head to
  // release() once the bytes are in the file.
  std::uint64_t copy_pending(Bytes& out) const;
  void release(std::uint64_t head) { state_.tail.store(head, std::memory_order_release); }

 private:
  std::mutex mutex_;  // a leaf lock: while it is held, only `wake` is called
  std::uint8_t* bytes_;
  std::size_t capacity_;
  DefinitionLogState& state_;
  std::uint64_t wait_ns_;
  bool dropping_ = false;  // as in Spool: a wait timed out, and less than a quarter is free
  std::function<void()> wake_;
};

}  // namespace alloctrace
