// Makes the device, as one of the two that torch can take it for.
#include "device.h"

#include <torch/library.h>

namespace virtual_device {

torch::Library& kernels_for(const char* ops, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ops, key, __FILE__, __LINE__);
}

} // namespace virtual_device

using namespace virtual_device;

// Called once, ahead of the first question to torch about devices.
extern "C" __attribute__((visibility("default"))) void install(bool as_cuda) {
  if (!as_cuda) {
    identity = {c10::DeviceType::PrivateUse1, c10::DispatchKey::PrivateUse1,
                c10::DispatchKey::SparsePrivateUse1};
  }
  register_memory();
  register_kernels();
  register_cuda_only();
  if (!as_cuda) {
    register_autocast();
  }
}
