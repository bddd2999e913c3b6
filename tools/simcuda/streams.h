// Streams, events and captures of the simulated driver. All functions need driver_lock() to be held; those that take a
// Lock may wait, and release the lock meanwhile.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "simcuda.h"

namespace simcuda {

struct Stream;
struct Graph;
struct Node;

// One cudaEventRecord. An event recorded again gets a new Recording; earlier waits keep the old one.
struct Recording {
  bool complete = false;
  std::chrono::steady_clock::time_point at{};
  std::shared_ptr<Stream> stream;  // until complete
};

// Work executes immediately unless it is blocked: a queue is empty except on a held stream, behind a wait, or behind a
// function that runs on the host.
struct Operation {
  enum class Kind { kWork, kRecord, kWait, kHostFunction, kAction };
  Kind kind = Kind::kWork;
  std::shared_ptr<Recording> recording;  // kRecord, kWait
  std::function<void()> function;  // kHostFunction: without the lock, on the driver's thread; kAction: with the lock
  bool started = false;
};

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::shared_ptr<Graph> graph;
  bool into_given_graph = false;
  bool invalidated = false;
  Stream* origin = nullptr;
  std::vector<std::shared_ptr<Stream>> streams;  // the origin and all that joined
};

struct Stream {
  cudaStream_t handle = nullptr;
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  bool legacy = false;
  bool held = false;
  std::deque<Operation> queue;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> capture_tail;  // dependencies of the next captured node

  bool blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};
using StreamPointer = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<Recording> recording;
  // Position of the last record in a capturing stream:
  std::weak_ptr<Capture> capture;
  std::vector<Node*> capture_tail;
  bool captured = false;
};
using EventPointer = std::shared_ptr<Event>;

// --- Handles
StreamPointer find_stream(cudaStream_t handle);  // null: no such stream. Default streams are created on demand
EventPointer find_event(cudaEvent_t handle);
StreamPointer legacy_stream(int device);

// --- Queues
void enqueue(const StreamPointer& stream, Operation operation);
std::shared_ptr<Recording> record_end(const StreamPointer& stream);
void finish(Lock& lock, const std::shared_ptr<Recording>& recording);
void finish_stream(Lock& lock, const StreamPointer& stream);
void finish_device(Lock& lock, int device);
bool idle(const StreamPointer& stream);
void advance_all();

// --- Captures
// For calls that are not allowed during a capture; they invalidate it.
cudaError_t refuse_while_capturing();
// For calls on the legacy stream, or on all of a device: they would depend on its capturing streams.
cudaError_t refuse_implicit_dependency(const StreamPointer& stream);
bool device_is_capturing(int device);
void invalidate(Capture& capture);
// Ends the capture without a graph. The result owns the graph's resources: release it without holding the lock.
std::shared_ptr<Graph> abandon_capture(const std::shared_ptr<Capture>& capture);
// Adds a node after the stream's captured work.
Node* capture_node(const StreamPointer& stream, std::shared_ptr<Node> node);

// --- Work that other calls put on a stream
struct Task {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  std::function<void()> copy;  // done at once by the caller, and again at each replay of a graph
  std::function<void()> host;  // done in the stream's order
};
// Queues the task, or captures it (then `captured` is true and nothing executes now). Takes the lock.
cudaError_t submit(cudaStream_t handle, Task task, bool* captured);

}  // namespace simcuda
