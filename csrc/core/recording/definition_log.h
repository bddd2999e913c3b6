// Definition records on their way from the hook to the writer: a byte ring that lives in the spool, so that what an
// event names survives a killed process together with the event.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "../base/varint.h"
#include "../format/spool_layout.h"

namespace alloctrace {

class DefinitionLog {
 public:
  // `bytes` and `state` are owned by the caller (spool memory) and outlive this. `wake` asks the writer to make room.
  DefinitionLog(std::uint8_t* bytes, std::size_t capacity, DefinitionLogState& state, std::uint64_t wait_ns,
                std::function<void()> wake);

  // Appends whole records, from any thread. Waits for room at most wait_ns; false when there was none, or when the
  // records are larger than the log: nothing is stored then.
  bool append(const Bytes& records) noexcept;

  // The writer's side. Appends to `out` everything between tail and head and returns that head; release() it once
  // it is in the file.
  std::uint64_t copy_pending(Bytes& out) const;
  void release(std::uint64_t head) { state_.tail.store(head, std::memory_order_release); }

 private:
  std::mutex mutex_;  // a leaf: while it is held, nothing is locked or called but `wake`
  std::uint8_t* bytes_;
  std::size_t capacity_;
  DefinitionLogState& state_;
  std::uint64_t wait_ns_;
  bool dropping_ = false;  // as in Spool: after one wait in vain, no other until a quarter is free
  std::function<void()> wake_;
};

}  // namespace alloctrace
