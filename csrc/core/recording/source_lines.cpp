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

void SourceLines::add_frame(const Definitions& names, const FrameRecord& frame) {
  if (!policy_.enabled) return;
  if (!seen_instructions_.insert(std::uint64_t{frame.code} << 32 | frame.instruction).second) return;
  const Code& code = names.code(frame.code);
  const std::string& filename = names.string(code.filename);
  const std::int32_t line = names.line_of(frame);
  if (line <= 0 || !is_user_file(filename)) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!seen_lines_.insert({code.filename, line}).second) return;
  filename_ids_[filename] = code.filename;
  if (filename.starts_with('<')) {
    unread_.emplace_back(filename, line);
  } else {
    queued_.push_back({code.filename, filename, line});
  }
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
