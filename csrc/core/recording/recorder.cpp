#include "recorder.h"

namespace alloctrace {

Recorder::Recorder(const RecorderOptions& options) : overwrite_(options.overwrite) {
  // Refuse an existing trace before any file is created.
  if (!options.overwrite) TraceFile::refuse_existing(options.path);
  spool_ = std::make_unique<Spool>(options.spool, options.session_id, [this] { wake_.post(); });
  try {
    file_ = std::make_unique<TraceFile>(options.path, options.overwrite, options.session_id);
    stacks_ = std::make_unique<StackTable>(spool_->definitions(), options.stack_limits);
    sources_ = std::make_unique<SourceLines>(options.sources);
    if (options.make_bound) bound_ = options.make_bound();
    writer_ = std::make_unique<Writer>(*file_, *spool_, wake_, *stacks_, *sources_, options.header_json, bound_.get());
  } catch (...) {
    spool_->remove_file();
    if (file_) file_->remove();
    throw;
  }
}

Recorder::~Recorder() {
  if (!stopped_) stop("{}");
}

std::uint32_t Recorder::location_id(const Location& location) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return locations_.find_or_add(location, [&](std::uint32_t id) {
    Bytes record;
    put_location(record, id, location);
    return spool_->definitions().append(record);
  });
}

std::uint16_t Recorder::node_type_id(const NodeType& type) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const std::uint32_t type_id = node_types_.find_or_add(type.name, [&](std::uint32_t id) {
    if (id > UINT16_MAX) return false;
    Bytes record;
    put_node_type(record, id, type);
    return spool_->definitions().append(record);
  });
  return static_cast<std::uint16_t>(type_id);
}

std::uint32_t Recorder::add_thread(const ThreadRecord& thread) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (threads_ >= kMaxThreads) return 0;
  Bytes record;
  put_thread(record, threads_ + 1, thread);
  return spool_->definitions().append(record) ? ++threads_ : 0;
}

void Recorder::name_thread(std::uint32_t thread, const std::string& python_name) {
  Bytes record;
  put_thread_name(record, thread, python_name);
  spool_->definitions().append(record);
}

void Recorder::add_device(const DeviceRecord& device) {
  Bytes record;
  put_device(record, device);
  spool_->definitions().append(record);
}

void Recorder::add_library_block(std::uint64_t event, std::uint64_t address, const char* name) noexcept {
  try {
    Bytes record;
    put_library_block(record, event, address, name);
    spool_->definitions().append(record);
  } catch (...) {  // out of memory: the block is attributed to its source line
  }
}

bool Recorder::add_holder(const HolderRecord& holder) {
  Bytes record;
  put_holder(record, holder);
  sources_->add_other_line(holder.store_filename, static_cast<std::int32_t>(holder.store_line));
  return spool_->definitions().append(record);  // then the writer requests the line
}

void Recorder::add_child(const ChildRecord& child) {
  Bytes record;
  put_child(record, child);
  spool_->definitions().append(record);
}

void Recorder::add_source_line(const std::string& filename, std::int32_t line, const std::string& text) {
  sources_->add_line(filename, line, text);
}

bool Recorder::flush(const Writer::ShouldGiveUp& should_give_up) {
  if (!writer_->flush(should_give_up)) return false;
  sources_->wait();  // not on the writer thread, which must keep draining the spool
  return writer_->flush(should_give_up);
}

bool Recorder::stop(const std::string& end_json, const Writer::ShouldGiveUp& should_give_up) {
  stopped_ = true;
  announce_stop();
  if (writer_->flush(should_give_up)) sources_->wait();
  const bool written = writer_->stop(end_json, should_give_up);
  if (written) spool_->remove_file();
  termination_.reset();  // last: otherwise a SIGTERM during stop() would leave the spool behind
  return written;
}

void Recorder::publish() {
  // Without overwrite, publish the trace first: if two processes start on one path, the one that is refused must not
  // have replaced the other's spool. With overwrite, replace the old trace last.
  if (!overwrite_) file_->publish();
  spool_->publish();
  file_->publish();
  termination_.emplace(wake_);
}

void Recorder::discard() {
  stop("{}");
  spool_->remove_file();
  file_->remove();
}

}  // namespace alloctrace
