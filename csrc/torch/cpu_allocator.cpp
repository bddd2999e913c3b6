#include "cpu_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "../core/base/thread.h"
#include "in_front.h"
#include "record_event.h"

namespace alloctrace::torch_side {
namespace {

const Location kCpu{static_cast<std::int32_t>(c10::DeviceType::CPU), 0, 0, 0, 0};

std::atomic<c10::DeleterFnPtr> default_deleter{nullptr};  // of the default allocator's blocks

// Record the free, then free: otherwise another thread could get the address and record its allocation first.
void free_block(void* address) {
  // Empty tensors have a null block with this deleter.
  if (address != nullptr) record(EventKind::kFreeCompleted, address, 0, kCpu);
  default_deleter.load(std::memory_order_relaxed)(address);
}

// Record a block if free_block() can become its deleter.
bool record_directly(c10::DataPtr& data, std::size_t size) {
  if (data.get() != data.get_context() ||
      !data.compare_exchange_deleter(default_deleter.load(std::memory_order_relaxed), &free_block)) {
    return false;
  }
  record(EventKind::kAlloc, data.get(), size, kCpu);
  return true;
}

// True while this thread is in an allocator whose blocks are recorded by ProgramFront, or in calls_reach_ours(): what
// it allocates from the default allocator is not recorded.
ALLOCTRACE_FAST_THREAD_LOCAL bool is_behind_front = false;

class BehindFront {
 public:
  BehindFront() : before_(std::exchange(is_behind_front, true)) {}
  ~BehindFront() { is_behind_front = before_; }
  BehindFront(const BehindFront&) = delete;
  BehindFront& operator=(const BehindFront&) = delete;

 private:
  const bool before_;
};

// The default allocator with this class's virtual table, which replaces its own: torch's Python bindings, and storages
// from before the recording, call the object itself and not the current allocator.
class DefaultFront final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    c10::DataPtr data = upstream().allocate(size);
    if (is_behind_front) return data;
    if (data.get() == nullptr) {
      count_empty_allocation();
    } else if (!record_directly(data, size)) {
      count_fault();
    }
    return data;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return upstream().is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    upstream().copy_data(destination, source, count);
  }

  // Return whether the table can be replaced: the class is the one of torch 2.9 to 2.15, which has no members and no
  // further virtual functions, and the object's memory can be written.
  static bool is_supported() {
    static const bool supported =
        std::string_view(typeid(*object()).name()) == "N3c1019DefaultCPUAllocatorE" && can_write_table();
    return supported;
  }
  static void attach() {
    if (table_of(object()) == own_table()) return;
    __atomic_store_n(reinterpret_cast<void**>(object()), own_table(), __ATOMIC_RELEASE);
  }
  static void detach() {
    if (table_of(object()) != own_table()) return;
    void* table = nullptr;
    std::memcpy(&table, stand_in, sizeof table);
    __atomic_store_n(reinterpret_cast<void**>(object()), table, __ATOMIC_RELEASE);
  }
  static c10::Allocator* object() { return c10::GetDefaultCPUAllocator(); }

 private:
  static_assert(sizeof(c10::Allocator) == sizeof(void*), "an allocator consists of the pointer to its table");

  static void* table_of(c10::Allocator* allocator) {
    return __atomic_load_n(reinterpret_cast<void**>(allocator), __ATOMIC_RELAXED);
  }
  static void* own_table() {
    static DefaultFront front;
    return table_of(&front);
  }
  // Write the table's present value by a system call, which fails where a store would crash.
  static bool can_write_table() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    void* const table = table_of(object());
    std::memcpy(stand_in, &table, sizeof table);  // long before other threads read it
    const bool can_write = write(ends[1], &table, sizeof table) == sizeof table &&
                           read(ends[0], static_cast<void*>(object()), sizeof table) == sizeof table;
    close(ends[0]);
    close(ends[1]);
    return can_write;
  }
  // Return an object with the default allocator's own table.
  static c10::Allocator& upstream() { return *std::launder(reinterpret_cast<c10::Allocator*>(stand_in)); }

  alignas(c10::Allocator) static inline std::byte stand_in[sizeof(c10::Allocator)];
};

// Owner of an upstream block that cannot get free_block() as its deleter.
struct WrappedBlock {
  c10::DataPtr upstream;
};
void free_wrapped_block(void* context) {
  const std::unique_ptr<WrappedBlock> wrapped(static_cast<WrappedBlock*>(context));
  record(EventKind::kFreeCompleted, wrapped->upstream.get(), 0, kCpu);
}

thread_local bool is_probing = false;  // this thread is in calls_reach_ours(): nothing is recorded
thread_local bool probe_reached_ours = false;

// Allocator in front of one that the program set, or of the default one if its table cannot be replaced.
class ProgramFront final : public c10::Allocator {
 public:
  explicit ProgramFront(c10::Allocator* upstream) : upstream_(upstream), upstream_deleter_(upstream->raw_deleter()) {}

  c10::DataPtr allocate(std::size_t size) override {
    const BehindFront behind;
    if (is_probing) {
      probe_reached_ours = true;
      return upstream_->allocate(size);
    }
    c10::DataPtr data = upstream_->allocate(size);
    if (data.get() == nullptr) {
      count_empty_allocation();
      return data;
    }
    if (record_directly(data, size)) return data;
    auto* const wrapped = new (std::nothrow) WrappedBlock;
    if (wrapped == nullptr) {
      count_fault();  // neither the block nor its free is recorded
      return data;
    }
    void* const address = data.get();
    const c10::Device device = data.device();
    record(EventKind::kAlloc, address, size, kCpu);
    wrapped->upstream = std::move(data);
    return {address, wrapped, &free_wrapped_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    const bool is_default =
        upstream_deleter_ == &free_block || upstream_deleter_ == default_deleter.load(std::memory_order_relaxed);
    return is_default ? &free_block : nullptr;
  }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    upstream_->copy_data(destination, source, count);
  }
  c10::Allocator* upstream() const { return upstream_; }

 private:
  c10::Allocator* const upstream_;
  const c10::DeleterFnPtr upstream_deleter_;
};

struct CpuSlot {
  static c10::Allocator* current() { return c10::GetAllocator(c10::DeviceType::CPU); }
  static void set(c10::Allocator*, c10::Allocator* after) { set_allocator(c10::DeviceType::CPU, after); }
};
FrontInstaller<ProgramFront, CpuSlot> program_front;
bool removal_failed = false;  // ours stayed behind another allocator

bool calls_reach_ours() {
  const BehindFront behind;
  is_probing = true;
  probe_reached_ours = false;
  CpuSlot::current()->allocate(1);
  is_probing = false;
  return probe_reached_ours;
}

}  // namespace

bool records_python_storages() { return DefaultFront::is_supported(); }

void install_cpu_allocator() {
  if (default_deleter == nullptr) default_deleter = DefaultFront::object()->raw_deleter();
  if (DefaultFront::is_supported()) {
    DefaultFront::attach();
    if (CpuSlot::current() == DefaultFront::object()) return;
  }
  // If ours is still in use behind another allocator, a second one in front would record every block twice.
  if (removal_failed && !program_front.is_ours_current() && calls_reach_ours()) return;
  removal_failed = false;
  program_front.install();
}

void remove_cpu_allocator() {
  DefaultFront::detach();
  if (program_front.installed()) removal_failed = !program_front.remove();
}

}  // namespace alloctrace::torch_side
