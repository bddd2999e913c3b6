#include "definition_log.h"

#include <algorithm>
#include <cstring>

#include "wait.h"

namespace alloctrace {

DefinitionLog::DefinitionLog(std::uint8_t* bytes, std::size_t capacity, DefinitionLogState& state,
                             std::uint64_t wait_ns, std::function<void()> wake)
    : bytes_(bytes), capacity_(capacity), state_(state), wait_ns_(wait_ns), wake_(std::move(wake)) {}

bool DefinitionLog::append(const Bytes& records) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  const std::uint64_t head = state_.head.load(std::memory_order_relaxed);
  const auto has_room = [&] {
    return head + records.size() - state_.tail.load(std::memory_order_acquire) <= capacity_;
  };
  if (records.size() > capacity_) return false;
  const std::uint64_t used = head - state_.tail.load(std::memory_order_acquire);
  if (dropping_ && used > capacity_ - capacity_ / 4) return false;
  dropping_ = false;
  if (!has_room()) {
    wake_();
    dropping_ = wait_ns_ == 0 || !wait_until(has_room, clock_nanoseconds(CLOCK_MONOTONIC) + wait_ns_);
    if (dropping_) return false;
  }
  const std::size_t start = head % capacity_;
  const std::size_t until_end = std::min(records.size(), capacity_ - start);
  std::memcpy(bytes_ + start, records.data(), until_end);
  std::memcpy(bytes_, records.data() + until_end, records.size() - until_end);
  state_.head.store(head + records.size(), std::memory_order_release);
  // Wake the writer when half full: it sleeps too long for a program that adds new stacks fast.
  if (head + records.size() - state_.tail.load(std::memory_order_relaxed) > capacity_ / 2) wake_();
  return true;
}

std::uint64_t DefinitionLog::copy_pending(Bytes& out) const {
  const std::uint64_t head = state_.head.load(std::memory_order_acquire);
  const std::uint64_t tail = state_.tail.load(std::memory_order_relaxed);
  if (head - tail > capacity_) return tail;  // the spool was truncated: both positions are invalid
  out.reserve(out.size() + (head - tail));
  copy_bytes_from_ring(bytes_, capacity_, tail, head, out);
  return head;
}

}  // namespace alloctrace
