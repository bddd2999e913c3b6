// cuDNN is not simulated: torch takes its own kernels for convolution, batch norm, recurrent layers and attention, as
// it does where cuDNN is switched off. The switch is torch's, the one of `torch.backends.cudnn.enabled`, so that the
// program need not know. A program that switches cuDNN on again gets errors that name the call.
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

// Called when kernels are registered, which torch's libraries do as they are loaded: so the program's own setting,
// which can only come later, stands.
void switch_off_cudnn() {
  static std::atomic<bool> done{false};
  if (done) return;
  // torch's library is loaded without being global: looked up in itself, and never loaded from here.
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
