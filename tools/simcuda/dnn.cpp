// cuDNN is not simulated: torch uses its own kernels for convolution, batch norm, recurrent layers and attention, as
// it does when cuDNN is switched off. The switch is torch's own, `torch.backends.cudnn.enabled`, so programs need no
// change. A program that switches cuDNN on again gets errors that name the call.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#include "simcuda.h"

namespace simcuda {
namespace {

// at::globalContext() and the members of at::Context, as the C++ compiler writes their names.
constexpr const char* kGlobalContext = "_ZN2at13globalContextEv";
constexpr const char* kSetters[] = {"_ZN2at7Context19setUserEnabledCuDNNEb", "_ZN2at7Context14setSDPUseCuDNNEb"};

}  // namespace

// Called when kernels are registered, while torch's libraries load: before the program's own setting, which therefore
// takes precedence.
void switch_off_cudnn() {
  static std::atomic<bool> done{false};
  if (done) return;
  // torch's library is not loaded globally: the symbol is looked up in the library itself, which is never loaded from
  // here.
  void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr || done.exchange(true)) return;
  const auto global_context = reinterpret_cast<void* (*)()>(dlsym(torch, kGlobalContext));
  bool all_found = global_context != nullptr;
  for (const char* name : kSetters) {
    const auto set = reinterpret_cast<void (*)(void*, bool)>(dlsym(torch, name));
    if (global_context != nullptr && set != nullptr) set(global_context(), false);
    all_found = all_found && set != nullptr;
  }
  if (!all_found) {
    std::fprintf(stderr,
                 "simcuda: this torch has no switch for cuDNN that is known here: set torch.backends.cudnn.enabled\n");
  }
}

}  // namespace simcuda
