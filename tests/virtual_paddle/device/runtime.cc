// The device as Paddle's custom device interface sees it: one device, whose memory is the host's.
//
// Paddle loads this library from the folder in CUSTOM_DEVICE_ROOT and calls InitPlugin.

#include <cstdlib>
#include <cstring>

#include "paddle/phi/backends/device_ext.h"
#include "lifting.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Copies from the device to the host: there the host waits for a real device. And the other way.
long reads = 0;
long writes = 0;

constexpr size_t kAlignment = 64;
constexpr size_t kMemory = size_t{4} << 30;
constexpr size_t kComputeCapability = 90;

C_Status Allocate(const C_Device, void** memory, size_t size) {
  size_t whole = (size + kAlignment - 1) / kAlignment * kAlignment;
  *memory = aligned_alloc(kAlignment, whole);
  return *memory == nullptr ? C_FAILED : C_SUCCESS;
}

C_Status Free(const C_Device, void* memory, size_t) {
  free(memory);
  return C_SUCCESS;
}

C_Status Fill(const C_Device, void* memory, unsigned char value, size_t size) {
  memset(memory, value, size);
  return C_SUCCESS;
}

C_Status Copy(const C_Device, void* to, const void* from, size_t size) {
  memcpy(to, from, size);
  return C_SUCCESS;
}

// Of one direction, which `count` counts.
template <long& count>
C_Status CountedCopy(const C_Device device, void* to, const void* from, size_t size) {
  ++count;
  return Copy(device, to, from, size);
}

C_Status CopyAcross(const C_Device, const C_Device to_device, void* to, const void* from,
                    size_t size) {
  return Copy(to_device, to, from, size);
}

// With a stream: everything has happened when a call returns, so that streams and events are names.
template <C_Status (*copy)(const C_Device, void*, const void*, size_t)>
C_Status InStream(const C_Device device, C_Stream, void* to, const void* from, size_t size) {
  return copy(device, to, from, size);
}

C_Status CopyAcrossInStream(const C_Device, const C_Device to_device, C_Stream, void* to,
                            const void* from, size_t size) {
  return Copy(to_device, to, from, size);
}

C_Status CreateStream(const C_Device, C_Stream* stream) {
  *stream = reinterpret_cast<C_Stream>(1);
  return C_SUCCESS;
}

C_Status CreateEvent(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(1);
  return C_SUCCESS;
}

C_Status WithStream(const C_Device, C_Stream) { return C_SUCCESS; }
C_Status WithEvent(const C_Device, C_Event) { return C_SUCCESS; }
C_Status WithStreamAndEvent(const C_Device, C_Stream, C_Event) { return C_SUCCESS; }
C_Status WithDevice(const C_Device) { return C_SUCCESS; }
C_Status WithNothing() { return C_SUCCESS; }

C_Status TellPresentDevice(const C_Device device) {
  device->id = 0;
  return C_SUCCESS;
}

C_Status TellDeviceCount(size_t* count) {
  *count = 1;
  return C_SUCCESS;
}

C_Status TellDevices(size_t* ids) {
  ids[0] = 0;
  return C_SUCCESS;
}

C_Status TellMemory(const C_Device, size_t* total, size_t* free_memory) {
  *total = *free_memory = kMemory;
  return C_SUCCESS;
}

C_Status TellSmallestChunk(const C_Device, size_t* size) {
  *size = 256;
  return C_SUCCESS;
}

C_Status TellComputeCapability(const C_Device, size_t* capability) {
  *capability = kComputeCapability;
  return C_SUCCESS;
}

C_Status Yes(const C_Device, bool* answer) {
  *answer = true;
  return C_SUCCESS;
}

C_Status No(const C_Device, bool* answer) {
  *answer = false;
  return C_SUCCESS;
}

void FillInterface(C_DeviceInterface* device) {
  device->initialize = device->finalize = WithNothing;
  device->init_device = device->set_device = device->deinit_device = WithDevice;
  device->synchronize_device = WithDevice;
  device->get_device = TellPresentDevice;
  device->get_device_count = TellDeviceCount;
  device->get_device_list = TellDevices;

  device->create_stream = CreateStream;
  device->destroy_stream = device->synchronize_stream = WithStream;
  device->create_event = CreateEvent;
  device->destroy_event = device->synchronize_event = WithEvent;
  device->record_event = device->stream_wait_event = WithStreamAndEvent;

  device->device_memory_allocate = device->host_memory_allocate = Allocate;
  device->unified_memory_allocate = Allocate;
  device->device_memory_deallocate = device->host_memory_deallocate = Free;
  device->unified_memory_deallocate = Free;
  device->device_memory_set = Fill;
  device->memory_copy_h2d = CountedCopy<writes>;
  device->memory_copy_d2h = CountedCopy<reads>;
  device->memory_copy_d2d = Copy;
  device->memory_copy_p2p = CopyAcross;
  device->async_memory_copy_h2d = InStream<CountedCopy<writes>>;
  device->async_memory_copy_d2h = InStream<CountedCopy<reads>>;
  device->async_memory_copy_d2d = InStream<Copy>;
  device->async_memory_copy_p2p = CopyAcrossInStream;
  device->device_memory_stats = TellMemory;
  device->device_min_chunk_size = TellSmallestChunk;

  device->get_compute_capability = TellComputeCapability;
  device->is_float16_supported = device->is_bfloat16_supported = Yes;
  device->is_dnn_supported = No;
}

}  // namespace

EXPORTED void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>("virtual_gpu");
  params->sub_device_type = const_cast<char*>("memory of the host");
  C_DeviceInterface* device = params->interface;
  memset(static_cast<void*>(device), 0, sizeof(C_DeviceInterface));
  FillInterface(device);
  virtual_gpu::RegisterKernels("virtual_gpu");
}

EXPORTED long virtual_gpu_reads() { return reads; }
EXPORTED long virtual_gpu_writes() { return writes; }
EXPORTED const char* virtual_gpu_calls() { return virtual_gpu::CallsAsText(); }
EXPORTED void virtual_gpu_forget_calls() { virtual_gpu::ForgetCalls(); }
