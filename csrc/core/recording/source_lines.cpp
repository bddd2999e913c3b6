#include "source_lines.h"

namespace alloctrace {

SourceLines::SourceLines(SourcePolicy policy) : policy_(std::move(policy)), reader_(policy_.working_directory) {}

bool SourceLines::is_user_file(const std::string& filename) const {
  if (filename.empty() || filename.starts_with("<frozen ")) return false;
  for (const std::string& prefix : policy_.library_prefixes) {
    if (filename.starts_with(prefix)) return false;
  }
  return true;
}

void SourceLines::find(const Definitions& names, const FrameRecord& frame) {
  if (!policy_.enabled) return;
  if (!calls_seen_.insert(std::uint64_t{frame.code} << 32 | frame.instruction).second) return;
  const Code& code = names.code(frame.code);
  const std::string& filename = names.string(code.filename);
  const std::int32_t line = names.line_of(frame);
  if (line <= 0 || !is_user_file(filename)) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!lines_seen_.insert({code.filename, line}).second) return;
  filename_ids_[filename] = code.filename;
  if (filename.starts_with('<')) {
    unread_.emplace_back(filename, line);
  } else {
    wanted_.push_back({code.filename, filename, line});
  }
}

void SourceLines::take_records(Bytes& out) {
  reader_.take_records(out);
  const std::lock_guard<std::mutex> guard(mutex_);
  out.insert(out.end(), records_.begin(), records_.end());
  records_.clear();
}

std::vector<std::pair<std::string, std::int32_t>> SourceLines::take_unread() {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto unread = std::exchange(unread_, {});
  for (SourceLine& missing : reader_.take_missing()) unread.emplace_back(std::move(missing.filename), missing.line);
  return unread;
}

void SourceLines::put_line(const std::string& filename, std::int32_t line, const std::string& text) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto known = filename_ids_.find(filename);
  if (known == filename_ids_.end() || line < 0) return;
  put_source_line(records_, known->second, static_cast<std::uint32_t>(line), text.substr(0, kMaxSourceLineBytes));
}

}  // namespace alloctrace
