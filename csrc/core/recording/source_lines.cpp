#include "source_lines.h"

#include <algorithm>

#include "../base/input_file.h"

namespace alloctrace {
namespace {

// Generated sources of many megabytes exist; their lines are not worth the program's memory.
constexpr std::size_t kMaxFileBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxLineBytes = 512;
constexpr std::size_t kMaxFilesHeld = 64;

}  // namespace

bool SourceLines::is_user_file(const std::string& filename) const {
  if (filename.empty() || filename.starts_with("<frozen ")) return false;
  for (const std::string& prefix : policy_.library_prefixes) {
    if (filename.starts_with(prefix)) return false;
  }
  return true;
}

const SourceLines::Lines& SourceLines::file(const std::string& filename) {
  const auto known = files_.find(filename);
  if (known != files_.end()) return known->second;
  if (files_.size() >= kMaxFilesHeld) files_.clear();
  Lines& lines = files_[filename];
  const std::string path = filename.starts_with('/') ? filename : policy_.working_directory + "/" + filename;
  if (filename.starts_with('<')) return lines;
  // The name comes from a code object and may be anything. InputFile opens regular files only: a pipe would keep the
  // writer for ever, a terminal would lose its input to us.
  const InputFile input(path);
  std::string text(input.is_open() ? std::min<std::uint64_t>(input.size(), kMaxFileBytes) : 0, '\0');
  if (!input.read(text.data(), text.size(), 0)) return lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, std::min(end - begin, kMaxLineBytes));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

void SourceLines::collect(const std::uint8_t* records, std::size_t size, Bytes& out) {
  if (!policy_.enabled) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  definitions_.add(records, size);
  for (; frames_seen_ < definitions_.frame_count(); ++frames_seen_) {
    const auto frame = static_cast<std::uint32_t>(frames_seen_);
    const Code& code = definitions_.code(definitions_.frame(frame).code);
    const std::string& filename = definitions_.string(code.filename);
    const std::int32_t line = definitions_.line(frame);
    if (line <= 0 || !is_user_file(filename) || !lines_seen_.insert({code.filename, line}).second) continue;
    filename_ids_[filename] = code.filename;
    const Lines& lines = file(filename);
    if (static_cast<std::size_t>(line) <= lines.size()) {
      put_source_line(out, code.filename, static_cast<std::uint32_t>(line), lines[static_cast<std::size_t>(line) - 1]);
    } else {
      unread_.emplace_back(filename, line);
    }
  }
}

std::vector<std::pair<std::string, std::int32_t>> SourceLines::take_unread() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return std::exchange(unread_, {});
}

bool SourceLines::put_line(const std::string& filename, std::int32_t line, const std::string& text, Bytes& out) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto known = filename_ids_.find(filename);
  if (known == filename_ids_.end() || line <= 0) return false;
  put_source_line(out, known->second, static_cast<std::uint32_t>(line), text.substr(0, kMaxLineBytes));
  return true;
}

}  // namespace alloctrace
