// cuDNN is not simulated: torch takes its own kernels for convolution, batch norm, recurrent layers and attention, as
// it does where cuDNN is switched off. The switch is torch's, the one of `torch.backends.cudnn.enabled`, so that the
// program need not know. A program that switches cuDNN on again gets errors that name the call.
#include <dlfcn.h>

#include "simcuda.h"

namespace simcuda {
namespace {

// torch's library is loaded without being global: looked up in itself, and never loaded from here.
void* torch_function(const char* mangled_name) {
  void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, mangled_name) : nullptr;
}

}  // namespace

void on_first_device_query() {
  using GlobalContext = void* (*)();
  using SetEnabled = void (*)(void*, bool);
  const auto global_context = reinterpret_cast<GlobalContext>(torch_function("_ZN2at13globalContextEv"));
  if (!global_context) return;  // a program without torch
  for (const char* setter : {"_ZN2at7Context19setUserEnabledCuDNNEb", "_ZN2at7Context14setSDPUseCuDNNEb"}) {
    if (const auto set = reinterpret_cast<SetEnabled>(torch_function(setter))) set(global_context(), false);
  }
}

}  // namespace simcuda
