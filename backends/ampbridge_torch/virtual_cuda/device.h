// What the parts of the virtual device share. README.md says what the device is.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <string>

namespace virtual_device {

#ifdef AS_PRIVATE_USE
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
constexpr auto kSparseKey = c10::DispatchKey::SparsePrivateUse1;
#define DEVICE_KEY PrivateUse1
#define SPARSE_DEVICE_KEY SparsePrivateUse1
#define LIBRARY virtual_device
#else
constexpr auto kType = c10::DeviceType::CUDA;
constexpr auto kKey = c10::DispatchKey::CUDA;
constexpr auto kSparseKey = c10::DispatchKey::SparseCUDA;
#define DEVICE_KEY CUDA
#define SPARSE_DEVICE_KEY SparseCUDA
#define LIBRARY virtual_cuda
#endif

inline c10::Device the_device() {
  return c10::Device(kType, 0);
}

// memory.cpp
c10::DeviceAllocator* allocator();
// Memory that the CPU's allocator gave, as the device's. `keeps` frees it.
c10::DataPtr adopted(void* data, size_t bytes, c10::DataPtr keeps);
at::Generator default_generator();

// kernels.cpp
// A tensor of the device as the CPU's, in the same memory, which the result does not keep alive.
at::Tensor on_cpu(const at::Tensor& tensor);
// A result of the CPU's as the device's. Takes its memory over.
at::Tensor on_device(const at::Tensor& tensor);
// Ones with this probability, and zeros, on the CPU, of the device's random numbers.
at::Tensor drawn_on_cpu(at::IntArrayRef sizes, double probability);

// notes.cpp
// `asked`: the dtype that the kernel is told to compute in, "" for that of its inputs.
void note_call(const std::string& op, const std::string& dtypes, const char* asked = "");
bool calls_are_noted();
// The host waits for the device here; `what` is the op that makes it.
void note_wait(const char* kind, const std::string& what);

} // namespace virtual_device
