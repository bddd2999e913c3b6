#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "../../core/base/blocked_signals.h"
#include "../../core/follow/follower.h"
#include "bindings.h"
#include "node_names.h"
#include "python_text.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

// Follower that reads on its own thread on request, so that the program does not wait. The thread never takes the GIL.
class Following {
 public:
  explicit Following(const std::string& path) : state_(std::make_unique<State>(path)), creator_pid_(getpid()) {}
  Following(const Following&) = delete;
  Following& operator=(const Following&) = delete;
  ~Following() {
    if (getpid() == creator_pid_) {
      stop();
    } else {
      // Leak the state in a forked child: its thread does not exist there, and its mutexes may be locked forever.
      (void)state_.release();
    }
  }

  // Ask the thread to read new events. Throws std::system_error if no thread can be started.
  void request_reading() {
    const std::lock_guard<std::mutex> guard(state_->mutex);
    if (state_->cancelled) return;
    state_->is_requested = true;
    if (!state_->thread.joinable()) {
      const BlockedSignals inherited;
      state_->thread = std::thread([state = state_.get()] { state->run(); });
    }
    state_->changed.notify_all();
  }
  // Read new events on the calling thread.
  void advance() {
    const py::gil_scoped_release unlocked;
    state_->read();
  }
  void stop() {
    const py::gil_scoped_release unlocked;
    {
      const std::lock_guard<std::mutex> guard(state_->mutex);
      state_->cancelled = true;
      state_->changed.notify_all();
    }
    if (state_->thread.joinable()) state_->thread.join();
  }
  void read_spool_at(const std::string& path) {
    const py::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> guard(state_->reading);
    state_->follower.read_spool_at(path);
  }
  std::string header_json() {
    const py::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> guard(state_->reading);
    return state_->follower.header_json();
  }
  // Return the latest reading, or nullptr before the first.
  std::shared_ptr<const Followed> latest() const {
    const std::lock_guard<std::mutex> guard(state_->mutex);
    return state_->latest;
  }
  // Return the error of the thread's last reading, or "".
  std::string problem() const {
    const std::lock_guard<std::mutex> guard(state_->mutex);
    return state_->problem;
  }

 private:
  struct State {
    explicit State(const std::string& path) : follower(path, [this](const Followed& followed) { publish(followed); }) {}

    void publish(const Followed& followed) {
      auto copy = std::make_shared<const Followed>(followed);
      const std::lock_guard<std::mutex> guard(mutex);
      latest.swap(copy);
    }
    void read() {
      const std::lock_guard<std::mutex> guard(reading);
      follower.advance(cancelled);
    }
    void run() {
      std::unique_lock<std::mutex> lock(mutex);
      for (;;) {
        changed.wait(lock, [this] { return is_requested || cancelled; });
        if (cancelled) return;
        is_requested = false;
        lock.unlock();
        std::string failure;
        try {
          read();
        } catch (const std::exception& error) {
          failure = error.what();
        }
        lock.lock();
        problem = std::move(failure);
      }
    }

    std::mutex reading;  // guards follower
    std::mutex mutex;    // guards the other fields; never held during a reading
    std::condition_variable changed;
    bool is_requested = false;
    std::atomic<bool> cancelled{false};
    std::shared_ptr<const Followed> latest;
    std::string problem;
    Follower follower;
    std::thread thread;
  };

  std::unique_ptr<State> state_;
  const pid_t creator_pid_;
};

template <std::uint64_t MemoryTotals::* Member>
std::uint64_t memory_total(const FollowedDevice& device) {
  return device.totals.*Member;
}

void define_followed_frame(py::module_& module) {
  py::class_<FollowedFrame>(module, "FollowedFrame")
      .def_property_readonly("function", text_of(&FollowedFrame::function))
      .def_property_readonly("filename", text_of(&FollowedFrame::filename))
      .def_readonly("line", &FollowedFrame::line)
      .def_property_readonly("source", text_of(&FollowedFrame::source))
      .def_property_readonly("cell", text_of(&FollowedFrame::cell));
}

void define_followed_stack(py::module_& module) {
  py::class_<FollowedStack>(module, "FollowedStack")
      .def_readonly("device", &FollowedStack::device)
      .def_readonly("stack", &FollowedStack::stack)
      .def_readonly("is_older", &FollowedStack::is_older)
      .def_property_readonly("library", text_of(&FollowedStack::library))
      .def_property_readonly("node", [](const FollowedStack& self) { return text(readable_node_type(self.node)); })
      .def_property_readonly("frames", [](const FollowedStack& self) { return *self.frames; })
      .def_readonly("bytes", &FollowedStack::bytes)
      .def_readonly("blocks", &FollowedStack::blocks)
      .def_readonly("at_points", &FollowedStack::at_points)
      .def_property_readonly("holder", text_of(&FollowedStack::holder));
}

void define_followed_device(py::module_& module) {
  py::class_<FollowedDevice>(module, "FollowedDevice")
      .def_readonly("device_type", &FollowedDevice::device_type)
      .def_readonly("device_index", &FollowedDevice::device_index)
      .def_property_readonly("requested", memory_total<&MemoryTotals::requested>)
      .def_property_readonly("allocated", memory_total<&MemoryTotals::allocated>)
      .def_property_readonly("active", memory_total<&MemoryTotals::active>)
      .def_property_readonly("reserved", memory_total<&MemoryTotals::reserved>)
      .def_property_readonly("releasable", memory_total<&MemoryTotals::releasable>)
      .def_property_readonly("stranded", [](const FollowedDevice& self) { return self.totals.stranded(); })
      .def_property_readonly("blocks", memory_total<&MemoryTotals::blocks>)
      .def_readonly("reports_segments", &FollowedDevice::reports_segments)
      .def_readonly("largest_free", &FollowedDevice::largest_free)
      .def_readonly("peak_allocated", &FollowedDevice::peak_allocated)
      .def_readonly("peak_reserved", &FollowedDevice::peak_reserved)
      .def_readonly("allocations", &FollowedDevice::allocations)
      .def_readonly("total_requested", &FollowedDevice::total_requested)
      .def_readonly("failed_allocations", &FollowedDevice::failed_allocations)
      .def_readonly("driver_used", &FollowedDevice::driver_used)
      .def_readonly("driver_total", &FollowedDevice::driver_total)
      .def_readonly("curve_allocated", &FollowedDevice::curve_allocated)
      .def_readonly("curve_reserved", &FollowedDevice::curve_reserved)
      .def_readonly("requested_at_points", &FollowedDevice::requested);
}

void define_followed(py::module_& module) {
  py::class_<Followed, std::shared_ptr<Followed>>(module, "Followed")
      .def_readonly("readings", &Followed::readings)
      .def_readonly("read_at_ns", &Followed::read_at_ns)
      .def_readonly("is_caught_up", &Followed::is_caught_up)
      .def_readonly("events", &Followed::events)
      .def_readonly("file_bytes", &Followed::file_bytes)
      .def_property_readonly("lost",
                             [](const Followed& self) {
                               std::uint64_t sum = 0;
                               for (const std::uint64_t lost : self.counters.lost) sum += lost;
                               return sum;
                             })
      .def_readonly("missing_events", &Followed::missing_events)
      .def_readonly("corrupt_blocks", &Followed::corrupt_blocks)
      .def_readonly("ended", &Followed::ended)
      .def_readonly("begin_ns", &Followed::begin_ns)
      .def_readonly("end_ns", &Followed::end_ns)
      .def_readonly("steps", &Followed::steps)
      .def_readonly("last_step", &Followed::last_step)
      .def_readonly("curve_interval_ns", &Followed::curve_interval_ns)
      .def_readonly("points_are_steps", &Followed::points_are_steps)
      .def_readonly("points", &Followed::points)
      .def_readonly("devices", &Followed::devices)
      .def_readonly("stacks", &Followed::stacks);
}

void define_follower(py::module_& module) {
  py::class_<Following>(module, "Following")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("request_reading", &Following::request_reading)
      .def("advance", &Following::advance)
      .def("stop", &Following::stop)
      .def("read_spool_at", &Following::read_spool_at, py::arg("path"))
      .def_property_readonly("header_json", [](Following& self) { return text(self.header_json()); })
      .def_property_readonly("problem", [](const Following& self) { return text(self.problem()); })
      .def("latest", [](const Following& self) { return std::const_pointer_cast<Followed>(self.latest()); });
}

}  // namespace

void define_following(py::module_& module) {
  define_followed_frame(module);
  define_followed_stack(module);
  define_followed_device(module);
  define_followed(module);
  define_follower(module);
}

}  // namespace alloctrace
