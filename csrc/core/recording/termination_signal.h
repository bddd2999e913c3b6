// Handling of SIGTERM: the writer completes the trace, then the signal ends the program as without a recording.
#pragma once

#include "wait.h"

namespace alloctrace {

// SIGTERM handler for the object's lifetime, installed only if the signal had its default action. A handler that the
// program installs later replaces this one. At most one object exists at a time.
class TerminationSignal {
 public:
  // `wake` wakes the writer, which then calls received().
  explicit TerminationSignal(WakeSignal& wake);
  // Restore the default action, and send a signal again that the writer has not handled.
  ~TerminationSignal();
  TerminationSignal(const TerminationSignal&) = delete;
  TerminationSignal& operator=(const TerminationSignal&) = delete;

  // Return whether the signal was received. The process ends when the writer calls resend(), or 2 s after the signal.
  static bool received() noexcept;
  // Send the signal again, which ends the process. Returns only if the program has installed a handler since.
  static void resend() noexcept;
  // Restore the default action in a forked child, which has no writer.
  static void forget_in_child() noexcept;
};

}  // namespace alloctrace
