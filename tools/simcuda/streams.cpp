// The queues of streams: pending work, completion, and waits between streams.
#include "streams.h"

#include <algorithm>
#include <condition_variable>
#include <set>

#include "content.h"
#include "graphs.h"

namespace simcuda {
namespace {

using Kind = Operation::Kind;

struct Queues {
  std::set<StreamPointer> pending;  // streams whose queue is not empty
  std::deque<std::pair<StreamPointer, std::function<void()>>> host_functions;
  bool host_thread_runs = false;
  std::condition_variable host_work;
  std::condition_variable progress;
};

Queues& queues() {
  static auto* const all = std::make_unique<Queues>().release();  // the host thread uses it until the process exits
  return *all;
}

void run_host_functions() {
  Lock lock(driver_lock());
  for (;;) {
    queues().host_work.wait(lock, [] { return !queues().host_functions.empty(); });
    auto [stream, function] = std::move(queues().host_functions.front());
    queues().host_functions.pop_front();
    lock.unlock();
    function();
    lock.lock();
    stream->queue.pop_front();
    if (stream->queue.empty()) queues().pending.erase(stream);
    advance_all();
    queues().progress.notify_all();
  }
}

// As with CUDA, not on the caller's thread: a function may wait for a lock that the caller holds.
void start_host_function(const StreamPointer& stream, Operation& operation) {
  if (operation.started) return;
  operation.started = true;
  if (!queues().host_thread_runs) {
    queues().host_thread_runs = true;
    std::thread(run_host_functions).detach();
  }
  queues().host_functions.emplace_back(stream, operation.function);
  queues().host_work.notify_one();
}

void complete(Recording& recording) {
  recording.complete = true;
  recording.at = std::chrono::steady_clock::now();
  recording.stream.reset();
}

// Executes the first operation of the queue, if possible now.
bool step(const StreamPointer& stream) {
  Operation& operation = stream->queue.front();
  switch (operation.kind) {
    case Kind::kWork:
      break;
    case Kind::kRecord:
      complete(*operation.recording);
      break;
    case Kind::kWait:
      if (!operation.recording->complete) return false;
      break;
    case Kind::kHostFunction:
      start_host_function(stream, operation);
      return false;
    case Kind::kAction:
      operation.function();
      break;
  }
  stream->queue.pop_front();
  if (stream->queue.empty()) queues().pending.erase(stream);
  return true;
}

void push(const StreamPointer& stream, Operation operation) {
  if (operation.kind == Kind::kWork && !stream->queue.empty() && stream->queue.back().kind == Kind::kWork) return;
  stream->queue.push_back(std::move(operation));
  queues().pending.insert(stream);
}

void push_wait_for_end(const StreamPointer& waiting, const StreamPointer& awaited) {
  auto recording = std::make_shared<Recording>();
  recording->stream = awaited;
  push(awaited, {Kind::kRecord, recording, {}});
  push(waiting, {Kind::kWait, recording, {}});
}

// The legacy stream and the blocking streams of a device wait for each other.
void push_implicit_waits(const StreamPointer& stream) {
  if (queues().pending.empty() || !stream->blocking()) return;
  const std::vector<StreamPointer> pending(queues().pending.begin(), queues().pending.end());
  for (const auto& other : pending) {
    if (other == stream || other->device != stream->device || !other->blocking()) continue;
    if (stream->legacy || other->legacy) push_wait_for_end(stream, other);
  }
}

}  // namespace

void advance_all() {
  for (bool progressed = true; progressed;) {
    progressed = false;
    const std::vector<StreamPointer> pending(queues().pending.begin(), queues().pending.end());
    for (const auto& stream : pending) {
      while (!stream->held && !stream->queue.empty() && step(stream)) progressed = true;
    }
  }
}

void enqueue(const StreamPointer& stream, Operation operation) {
  push_implicit_waits(stream);
  if (operation.kind == Kind::kWork && stream->queue.empty() && !stream->held) return;
  push(stream, std::move(operation));
  advance_all();
}

std::shared_ptr<Recording> record_end(const StreamPointer& stream) {
  auto recording = std::make_shared<Recording>();
  recording->stream = stream;
  enqueue(stream, {Kind::kRecord, recording, {}});
  return recording;
}

bool idle(const StreamPointer& stream) { return stream->queue.empty(); }

void finish(Lock& lock, const std::shared_ptr<Recording>& recording) {
  while (!recording->complete) {
    const StreamPointer stream = recording->stream;
    Operation& operation = stream->queue.front();
    if (operation.kind == Kind::kWait && !operation.recording->complete) {
      finish(lock, std::shared_ptr<Recording>(operation.recording));
    } else if (!step(stream)) {
      queues().progress.wait(lock);
    }
  }
  advance_all();
}

void finish_stream(Lock& lock, const StreamPointer& stream) {
  auto recording = std::make_shared<Recording>();
  push_implicit_waits(stream);
  if (stream->queue.empty()) return;
  recording->stream = stream;
  push(stream, {Kind::kRecord, recording, {}});
  finish(lock, recording);
}

void finish_device(Lock& lock, int device) {
  for (;;) {
    const auto& pending = queues().pending;
    const auto found = std::find_if(pending.begin(), pending.end(), [&](const auto& s) { return s->device == device; });
    if (found == pending.end()) return;
    finish_stream(lock, StreamPointer(*found));
  }
}

cudaError_t submit(cudaStream_t handle, Task task, bool* captured) {
  *captured = false;
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return error;
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
    auto node = std::make_shared<Node>();
    node->type = task.type;
    node->copy = std::move(task.copy);
    node->host = std::move(task.host);
    capture_node(stream, std::move(node));
    *captured = true;
    return cudaSuccess;
  }
  if (!task.copy) note_launch();
  if (task.host) {
    enqueue(stream, {Kind::kHostFunction, nullptr, std::move(task.host)});
  } else {
    enqueue(stream, {});
  }
  return cudaSuccess;
}

cudaError_t submit_work(cudaStream_t stream) {
  bool captured = false;
  return submit(stream, {}, &captured);
}

}  // namespace simcuda
