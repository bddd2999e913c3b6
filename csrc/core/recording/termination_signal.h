// SIGTERM: the writer ends the trace before the program dies of the signal, as it would without us.
#pragma once

#include "wake_signal.h"

namespace alloctrace {

// Handles SIGTERM while it exists, where the signal had its default action. One that the program ignores or handles is
// left alone, and a handler that the program installs later simply replaces ours. There is one at a time.
class TerminationSignal {
 public:
  // `wake`: of the writer, which then asks received().
  explicit TerminationSignal(WakeSignal& wake);
  // Gives the signal its default action back. A signal that came too late for the writer is passed on.
  ~TerminationSignal();
  TerminationSignal(const TerminationSignal&) = delete;
  TerminationSignal& operator=(const TerminationSignal&) = delete;

  // Whether the signal came. The process dies of it when the writer calls pass_on(), at the latest 2 s after it came.
  static bool received() noexcept;
  // Ends the process by the signal. Returns only where the program has installed a handler since.
  static void pass_on() noexcept;
  // In a forked child, which must die at once: it has no writer.
  static void forget_in_child() noexcept;
};

}  // namespace alloctrace
