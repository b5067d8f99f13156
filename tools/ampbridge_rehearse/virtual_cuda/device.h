// What the parts of the virtual device share. README.md says what the device is.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <chrono>
#include <string>

namespace torch {
class Library;
}

namespace virtual_device {

// What torch takes it for: CUDA, or a device of somebody's extension. Said once, ahead of all else.
struct Identity {
  c10::DeviceType type = c10::DeviceType::CUDA;
  c10::DispatchKey key = c10::DispatchKey::CUDA;
  c10::DispatchKey sparse_key = c10::DispatchKey::SparseCUDA;
};

inline Identity identity;

inline bool is_cuda() {
  return identity.type == c10::DeviceType::CUDA;
}

inline c10::Device the_device() {
  return c10::Device(identity.type, 0);
}

// install.cpp
// Where kernels are registered from now until the process ends; "_" is the namespace of fallbacks.
torch::Library& kernels_for(const char* ops, c10::DispatchKey key);

// memory.cpp
c10::DeviceAllocator* allocator();
// Memory that the CPU's allocator gave, as the device's. `keeps` frees it.
c10::DataPtr adopted(void* data, size_t bytes, c10::DataPtr keeps);
at::Generator default_generator();
void register_memory();

// kernels.cpp
// A tensor of the device as the CPU's, in the same memory, which the result does not keep alive.
at::Tensor on_cpu(const at::Tensor& tensor);
// A result of the CPU's as the device's. Takes its memory over.
at::Tensor on_device(const at::Tensor& tensor);
// Ones with this probability, and zeros, on the CPU, of the device's random numbers.
at::Tensor drawn_on_cpu(at::IntArrayRef sizes, double probability);
void register_kernels();

// cuda_only.cpp
void register_cuda_only();

// autocast.cpp
void register_autocast();

// notes.cpp
// `asked`: the dtype that the kernel is told to compute in, "" for that of its inputs.
void note_call(const std::string& op, const std::string& dtypes, const char* asked = "");
bool calls_are_noted();
// Counts the time of a kernel, which is not the host's on a real device, until it is destroyed.
class Timed {
 public:
  Timed() = default;
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed();

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};
// The host waits for the device here; `what` is the op that makes it.
void note_wait(const char* kind, const std::string& what);

} // namespace virtual_device
