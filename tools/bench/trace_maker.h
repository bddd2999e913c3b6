// A trace written by csrc/core's own encoder, file and definitions, but without a program. The clock is simulated: a
// minute of generation can represent an hour of training, and equal parameters give equal events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../csrc/core/format/event_codec.h"
#include "../../csrc/core/format/trace_file.h"
#include "../../csrc/core/recording/definition_log.h"
#include "../../csrc/core/recording/stack_table.h"

namespace alloctrace::bench {

class TraceMaker {
 public:
  TraceMaker(const std::string& path, const std::uint8_t (&session_id)[16], std::string header_json)
      : file_(path, true, session_id),
        log_bytes_(kLogBytes),
        log_(log_bytes_.data(), log_bytes_.size(), log_state_, 0, [] {}),
        stacks_(log_),
        header_json_(std::move(header_json)),
        begin_(file_.next_begin()) {
    events_.reserve(kBlockEvents);
    append(BlockType::kHeader, header_json_);
  }

  StackTable& stacks() { return stacks_; }

  // One record, as put_place() and similar functions encode it.
  void define(const Bytes& record) {
    if (!log_.append(record)) throw TraceFileError("the definition log is too small");
  }

  // Drains the definitions of stacks, often enough that the log never fills.
  void write_definitions() {
    Bytes pending;
    log_.release(log_.copy_pending(pending));
    if (pending.empty()) return;
    append(BlockType::kDefinitions, pending);
    dictionary_.insert(dictionary_.end(), pending.begin(), pending.end());
  }

  // Advances the clock before the next event.
  void advance(std::uint64_t nanoseconds) { now_ns_ += nanoseconds; }
  std::uint64_t now_ns() const { return now_ns_; }
  // The number that the next event gets.
  std::uint64_t sequence() const { return written_ + events_.size(); }

  void push(Event event) {
    event.time = now().counter;
    events_.push_back(event);
    if (events_.size() == kBlockEvents) write_events();
  }

  void finish(std::string_view end_json) {
    write_events();
    repeat_names();
    append(BlockType::kEnd, end_json);
    file_.publish();
  }

  std::uint64_t bytes() const { return file_.bytes(); }

 private:
  // As in writer.cpp, so that blocks have the size of those in recordings.
  static constexpr std::size_t kBlockEvents = 65'536;
  static constexpr std::uint64_t kDictionaryEveryBytes = std::uint64_t{256} << 20;
  static constexpr std::size_t kLogBytes = std::size_t{64} << 20;

  // A counter of 2.5 GHz that began when the file was made.
  ClockAnchor now() const {
    return {begin_.counter + now_ns_ * 5 / 2, begin_.monotonic_ns + now_ns_, begin_.wall_ns + now_ns_};
  }

  void write_events() {
    write_definitions();
    if (events_.empty()) return;
    const Bytes& payload = encoder_.encode(events_, {}, file_.next_begin().counter);
    append(BlockType::kEvents, payload, events_.size());
    written_ += events_.size();
    events_.clear();
    if (file_.bytes() - dictionary_at_ >= kDictionaryEveryBytes) repeat_names();
  }

  void repeat_names() {
    append(BlockType::kHeader, header_json_);
    append(BlockType::kDictionary, dictionary_);
    dictionary_at_ = file_.bytes();
  }

  template <typename Payload>
  void append(BlockType type, const Payload& payload, std::uint64_t event_count = 0) {
    BlockHeader header{};
    header.type = type;
    header.first_sequence = written_;
    header.event_count = event_count;
    header.end = now();
    if (!file_.append(header, payload)) throw TraceFileError("cannot write " + file_.path());
  }

  TraceFile file_;
  std::vector<std::uint8_t> log_bytes_;
  DefinitionLogState log_state_{};
  DefinitionLog log_;
  StackTable stacks_;
  std::string header_json_;
  ClockAnchor begin_;
  EventEncoder encoder_;
  std::vector<Event> events_;
  Bytes dictionary_;
  std::uint64_t now_ns_ = 0, written_ = 0, dictionary_at_ = 0;
};

}  // namespace alloctrace::bench
