#include "source_lines.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "../base/input_file.h"
#include "../base/thread.h"
#include "../format/definitions.h"

namespace alloctrace {
namespace {

// Maximum number of queued lines: more than the distinct lines of a large program.
constexpr std::size_t kMaxRequests = 65'536;
// Maximum bytes read of a file: generated sources of many megabytes would use the program's memory.
constexpr std::size_t kMaxFileBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxCachedFiles = 64;

using Lines = std::vector<std::string>;

Lines read_lines(const std::string& path) {
  Lines lines;
  // InputFile opens regular files only: `path` may name a terminal, whose input a read would consume.
  const InputFile input(path);
  std::string text(input.is_open() ? std::min<std::uint64_t>(input.size(), kMaxFileBytes) : 0, '\0');
  if (!input.read(text.data(), text.size(), 0)) return lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, std::min(end - begin, kMaxSourceLineBytes));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

struct SourceReader::Shared {
  // Needed by clang before 16, where make_shared cannot construct an aggregate.
  explicit Shared(std::string directory) : working_directory(std::move(directory)) {}

  const std::string working_directory;
  std::mutex mutex;
  std::condition_variable requested, answered;
  std::deque<SourceLine> requests;  // the thread reads the first
  Bytes records;
  std::vector<SourceLine> missing;
  bool is_hung = false;  // a wait timed out, and no line was read since
  bool stopping = false, ended = false;

  template <typename Condition>
  bool wait_or_mark_hung(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout, Condition condition) {
    is_hung = is_hung || !answered.wait_for(lock, timeout, condition);
    return condition();
  }
};

SourceReader::SourceReader(std::string working_directory)
    : shared_(std::make_shared<Shared>(std::move(working_directory))) {}

SourceReader::~SourceReader() {
  if (!thread_.joinable()) return;
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->stopping = true;
  shared_->requested.notify_one();
  const bool ended = shared_->wait_or_mark_hung(lock, kTimeout, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void SourceReader::request(std::vector<SourceLine> lines) {
  if (lines.empty()) return;
  if (!thread_.joinable()) {
    try {
      thread_ = start_thread([shared = shared_] { run(*shared); });
    } catch (const std::system_error&) {
      return;  // no thread can be started: these lines are missing, the next request tries again
    }
  }
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const std::size_t accepted = std::min(lines.size(), kMaxRequests - shared_->requests.size());
  std::move(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(accepted),
            std::back_inserter(shared_->requests));
  shared_->requested.notify_one();
}

void SourceReader::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->wait_or_mark_hung(lock, timeout, [this] { return shared_->requests.empty(); });
}

void SourceReader::drain_records(Bytes& out) {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  out.insert(out.end(), shared_->records.begin(), shared_->records.end());
  shared_->records.clear();
}

std::vector<SourceLine> SourceReader::drain_missing() {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  return std::exchange(shared_->missing, {});
}

// Read requested lines until `stopping`. Static, with access to `shared` only: the SourceReader may be destroyed.
void SourceReader::run(Shared& shared) {
  std::unordered_map<std::string, Lines> files;
  std::unique_lock<std::mutex> lock(shared.mutex);
  for (;;) {
    shared.requested.wait(lock, [&] { return shared.stopping || !shared.requests.empty(); });
    if (shared.stopping) break;
    const SourceLine& request = shared.requests.front();  // push_back on a deque keeps the reference valid
    try {
      lock.unlock();
      if (files.size() >= kMaxCachedFiles && !files.contains(request.filename)) files.clear();
      const auto [file, is_new] = files.try_emplace(request.filename);
      if (is_new) {
        const bool is_absolute = request.filename.starts_with('/');
        file->second = read_lines(is_absolute ? request.filename : shared.working_directory + "/" + request.filename);
      }
      const Lines& lines = file->second;
      lock.lock();
      const auto line = static_cast<std::size_t>(request.line);
      if (line <= lines.size()) {
        put_source_line(shared.records, request.filename_id, static_cast<std::uint32_t>(line), lines[line - 1]);
      } else {
        shared.missing.push_back(request);
      }
    } catch (...) {  // out of memory: this line is missing
      if (!lock.owns_lock()) lock.lock();
    }
    shared.requests.pop_front();
    shared.is_hung = false;
    if (shared.requests.empty()) shared.answered.notify_all();
  }
  shared.ended = true;
  shared.answered.notify_all();
}

SourceLines::SourceLines(SourcePolicy policy) : policy_(std::move(policy)), reader_(policy_.working_directory) {}

bool SourceLines::is_user_file(const std::string& filename) const {
  if (filename.empty() || filename.starts_with("<frozen ")) return false;
  for (const std::string& prefix : policy_.library_prefixes) {
    if (filename.starts_with(prefix)) return false;
  }
  return true;
}

void SourceLines::add_frame(const Definitions& names, const FrameRecord& frame) {
  if (!policy_.enabled) return;
  if (!seen_instructions_.insert(std::uint64_t{frame.code} << 32 | frame.instruction).second) return;
  const Code& code = names.code(frame.code);
  const std::string& filename = names.string(code.filename);
  const std::int32_t line = names.line_of(frame);
  if (line <= 0 || !is_user_file(filename)) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  filename_ids_[filename] = code.filename;
  queue(code.filename, filename, line);
}

void SourceLines::add_other_line(const std::string& filename, std::int32_t line) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (policy_.enabled && line > 0) other_lines_.emplace_back(filename, line);
}

void SourceLines::queue(std::uint32_t filename_id, const std::string& filename, std::int32_t line) {
  if (!seen_lines_.insert({filename_id, line}).second) return;
  if (filename.starts_with('<')) {
    unread_.emplace_back(filename, line);
  } else {
    queued_.push_back({filename_id, filename, line});
  }
}

void SourceLines::request_lines() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [filename, line] : std::exchange(other_lines_, {})) {
      const auto entry = filename_ids_.find(filename);
      if (entry != filename_ids_.end()) queue(entry->second, filename, line);
    }
  }
  reader_.request(std::exchange(queued_, {}));
}

void SourceLines::drain_records(Bytes& out) {
  reader_.drain_records(out);
  const std::lock_guard<std::mutex> guard(mutex_);
  out.insert(out.end(), records_.begin(), records_.end());
  records_.clear();
}

std::vector<std::pair<std::string, std::int32_t>> SourceLines::drain_unread() {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto unread = std::exchange(unread_, {});
  for (SourceLine& missing : reader_.drain_missing()) unread.emplace_back(std::move(missing.filename), missing.line);
  return unread;
}

void SourceLines::add_line(const std::string& filename, std::int32_t line, const std::string& text) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto entry = filename_ids_.find(filename);
  if (entry == filename_ids_.end() || line < 0) return;
  put_source_line(records_, entry->second, static_cast<std::uint32_t>(line), text.substr(0, kMaxSourceLineBytes));
}

}  // namespace alloctrace
