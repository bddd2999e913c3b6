// Layout of CPython's frames, for each version that this module reads without the public API.
//
// Only this file depends on CPython's internals, whose headers do not always compile as C++. layout_check.cpp compares
// the structs with the running interpreter before their first use. Tested with 3.10 to 3.13; the layout of 3.14 is from
// its sources (pycore_interpframe_structs.h and pycore_debug_offsets.h in Include/internal) and untested.
#pragma once

#include <Python.h>
#include <frameobject.h>

#include <cstddef>
#include <cstdint>

#include "../../core/base/hash.h"

#if PY_VERSION_HEX < 0x030A0000
#error "Python 3.10 or later is needed"
#endif

// Free-threaded builds are excluded: threads run copies of the bytecode and change frames without a lock.
#if PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED)
#define ALLOCTRACE_KNOWN_LAYOUT 1
#else
#define ALLOCTRACE_KNOWN_LAYOUT 0
#endif

namespace alloctrace::python {

// The next two functions may be called without the GIL.
inline bool interpreter_is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}
// Return the thread state that holds the GIL (up to 3.11), or the calling thread's if it holds the GIL (from 3.12 on).
inline PyThreadState* thread_with_gil() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_GetUnchecked();
#else
  return _PyThreadState_UncheckedGet();
#endif
}

// Scope without tracers, profilers and sys.monitoring on the calling thread. Needs the GIL.
class SuspendedTracing {
 public:
  SuspendedTracing() noexcept : thread_(PyThreadState_Get()) {
#if PY_VERSION_HEX >= 0x030B0000
    PyThreadState_EnterTracing(thread_);
#else
    ++thread_->tracing;
    thread_->cframe->use_tracing = 0;
#endif
  }
  ~SuspendedTracing() {
#if PY_VERSION_HEX >= 0x030B0000
    PyThreadState_LeaveTracing(thread_);
#else
    --thread_->tracing;
    thread_->cframe->use_tracing =
        thread_->tracing == 0 && (thread_->c_tracefunc != nullptr || thread_->c_profilefunc != nullptr) ? 255 : 0;
#endif
  }
  SuspendedTracing(const SuspendedTracing&) = delete;
  SuspendedTracing& operator=(const SuspendedTracing&) = delete;

 private:
  PyThreadState* const thread_;
};

#if ALLOCTRACE_KNOWN_LAYOUT

#if PY_VERSION_HEX >= 0x030D0000
// 3.13 and 3.14 differ only after `instruction`.
struct Frame {
  std::uintptr_t executable;  // PyObject*; in 3.14 the two lowest bits are a reference-counting tag
  Frame* previous;
  void* function;
  void* globals;
  void* builtins;
  void* locals;
  void* frame_object;
  const char* instruction;  // the current instruction
#if PY_VERSION_HEX >= 0x030E0000
  void* stack_pointer;
#else
  int stack_top;
#endif
  std::uint16_t return_offset;
  char owner;
  std::uintptr_t first_local;  // PyObject*, tagged as `executable` is
};
#elif PY_VERSION_HEX >= 0x030C0000
struct Frame {
  PyCodeObject* executable;
  Frame* previous;
  void* function;
  void* globals;
  void* builtins;
  void* locals;
  void* frame_object;
  const char* instruction;  // the code unit before the next instruction
  int stack_top;
  std::uint16_t return_offset;
  char owner;
  std::uintptr_t first_local;  // PyObject*
};
#elif PY_VERSION_HEX >= 0x030B0000
struct Frame {
  void* function;
  void* globals;
  void* builtins;
  void* locals;
  PyCodeObject* executable;
  void* frame_object;
  Frame* previous;
  const char* instruction;  // the code unit before the next instruction
  int stack_top;
  bool is_entry;
  char owner;
  std::uintptr_t first_local;  // PyObject*
};
#else
using Frame = PyFrameObject;
#endif

// Test builds check that each frame that is read is in the thread's live chain (frame_walk_probe.cpp).
#ifdef ALLOCTRACE_CHECK_FRAMES
void begin_frame_check(const Frame* innermost);
void check_frame_is_live(const Frame* frame);
#else
inline void begin_frame_check(const Frame*) noexcept {}
inline void check_frame_is_live(const Frame*) noexcept {}
#endif

inline const Frame* unchecked_caller(const Frame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return frame->previous;
#else
  return frame->f_back;
#endif
}

// Return the frame that `thread`, the calling thread's state, executes; nullptr if it runs no Python code.
inline const Frame* innermost_frame(const PyThreadState* thread) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  const Frame* const frame = reinterpret_cast<const Frame*>(thread->current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
  const Frame* const frame = reinterpret_cast<const Frame*>(thread->cframe->current_frame);
#else
  const Frame* const frame = thread->frame;
#endif
  begin_frame_check(frame);
  return frame;
}

inline const Frame* caller(const Frame* frame) noexcept {
  check_frame_is_live(frame);
  return unchecked_caller(frame);
}

// Return a number unique to a live code object and instruction. From 3.11 on code objects contain their instructions.
inline std::uint64_t position(const Frame* frame) noexcept {
  check_frame_is_live(frame);
#if PY_VERSION_HEX >= 0x030B0000
  return reinterpret_cast<std::uint64_t>(frame->instruction);
#else
  return reinterpret_cast<std::uint64_t>(frame->f_code) +
         static_cast<std::uint64_t>(static_cast<std::int64_t>(frame->f_lasti)) * kGoldenRatio;
#endif
}

// Return the code object of a frame that tracebacks show; nullptr for entries from C code into the interpreter, frames
// without a code object, and frames that have not reached their first traceable instruction.
inline PyCodeObject* visible_code(const Frame* frame) noexcept {
  check_frame_is_live(frame);
#if PY_VERSION_HEX >= 0x030B0000
  constexpr char kOwnedByGenerator = 1;
#if PY_VERSION_HEX >= 0x030C0000
  constexpr char kFirstOwnerWithoutCode = 3;  // 3.12, 3.13: the C stack; 3.14: the interpreter, the C stack
  if (frame->owner >= kFirstOwnerWithoutCode) return nullptr;
#endif
#if PY_VERSION_HEX >= 0x030D0000
  constexpr std::uintptr_t kTagBits = PY_VERSION_HEX >= 0x030E0000 ? 3 : 0;
  PyObject* const object = reinterpret_cast<PyObject*>(frame->executable & ~kTagBits);
  if (object == nullptr || !PyCode_Check(object)) return nullptr;
  PyCodeObject* const code = reinterpret_cast<PyCodeObject*>(object);
#else
  PyCodeObject* const code = frame->executable;
#endif
  const char* const first_traceable = code->co_code_adaptive + 2 * code->_co_firsttraceable;
  if (frame->owner != kOwnedByGenerator && frame->instruction < first_traceable) return nullptr;
  return code;
#else
  return frame->f_code;
#endif
}

// Return the byte offset of the instruction that `frame` executes in `code`, its visible_code (f_lasti in Python).
inline std::uint32_t instruction_offset(const Frame* frame, const PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return static_cast<std::uint32_t>(frame->instruction - code->co_code_adaptive);
#else
  (void)code;
  return static_cast<std::uint32_t>(frame->f_lasti * 2);  // 3.10 counts code units
#endif
}

// Range of the values that position() returns for the frames of one code object; in 3.10 the code object's address.
struct CodeExtent {
  std::uint64_t begin = 0, length = 0;  // length 0: no frame
};
inline CodeExtent extent_of(const PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return {reinterpret_cast<std::uint64_t>(code->co_code_adaptive), static_cast<std::uint64_t>(Py_SIZE(code)) * 2};
#else
  return {reinterpret_cast<std::uint64_t>(code), 1};
#endif
}
inline bool is_in_code(const CodeExtent& code, const Frame* frame, std::uint64_t position) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  (void)frame;
  return position - code.begin < code.length;
#else
  (void)position;
  return reinterpret_cast<std::uint64_t>(frame->f_code) == code.begin;
#endif
}

// Return a frame's first argument. Its code object must have one that no inner function uses (it would be in a cell).
inline PyObject* first_argument(const Frame* frame) noexcept {
  check_frame_is_live(frame);
#if PY_VERSION_HEX >= 0x030E0000
  return reinterpret_cast<PyObject*>(frame->first_local & ~std::uintptr_t{3});
#elif PY_VERSION_HEX >= 0x030B0000
  return reinterpret_cast<PyObject*>(frame->first_local);
#else
  return frame->f_localsplus[0];
#endif
}

inline PyObject* qualified_name(const PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return code->co_qualname;
#else
  (void)code;
  return nullptr;
#endif
}

#if PY_VERSION_HEX >= 0x030D0000
// Beginning of _Py_DebugOffsets, the interpreter's own table of its layout, at the start of _PyRuntime.
struct DebugOffsets {
  char cookie[8];
  std::uint64_t version;
  std::uint64_t free_threaded;
  std::uint64_t runtime_state[3];
#if PY_VERSION_HEX >= 0x030E0000
  std::uint64_t interpreter_state[16];
#else
  std::uint64_t interpreter_state[13];
#endif
  struct {
    std::uint64_t size, prev, next, interp, current_frame, thread_id, native_thread_id, datastack_chunk, status;
  } thread_state;
  struct {
    std::uint64_t size, previous, executable, instr_ptr, localsplus, owner;
#if PY_VERSION_HEX >= 0x030E0000
    std::uint64_t stackpointer, tlbc_index;
#endif
  } frame;
  struct {
    std::uint64_t size, filename, name, qualname, linetable, firstlineno, argcount, localsplusnames, localspluskinds,
        co_code_adaptive;
  } code;
};
#endif

#endif  // ALLOCTRACE_KNOWN_LAYOUT

}  // namespace alloctrace::python
