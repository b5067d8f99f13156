// What lifted kernels share: rounding, where tensors are, which CPU kernel, who was called.

#include "lifting.h"

#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "paddle/phi/backends/context_pool.h"

namespace virtual_gpu {

// ------------------------------------------------------------------------------------------ rounding

namespace {

float FromBfloat16(uint16_t bits) {
  uint32_t wide = uint32_t{bits} << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

constexpr uint16_t kNan = 0x7fc0;

uint16_t ToBfloat16(float value) {
  if (value != value) return kNan;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t last_kept = bits >> 16 & 1;
  return (bits + 0x7fff + last_kept) >> 16;
}

}  // namespace

// The compiler's _Float16 rounds correctly; Paddle's own float16 is wrong for 2^-89 <= |x| < 2^-77.
void Widen(const void* from, DataType dtype, float* to, int64_t count) {
  if (dtype == DataType::FLOAT16) {
    auto* values = static_cast<const _Float16*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = values[i];
  } else {
    auto* values = static_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = FromBfloat16(values[i]);
  }
}

void Narrow(const float* from, DataType dtype, void* to, int64_t count) {
  if (dtype == DataType::FLOAT16) {
    auto* values = static_cast<_Float16*>(to);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<_Float16>(from[i]);
  } else {
    auto* values = static_cast<uint16_t*>(to);
    for (int64_t i = 0; i < count; ++i) values[i] = ToBfloat16(from[i]);
  }
}

// ------------------------------------------------------------------------------------------- tensors

const CPUContext& Host() {
  auto* context = phi::DeviceContextPool::Instance().Get(phi::CPUPlace());
  return *static_cast<const CPUContext*>(context);
}

namespace {

DenseTensor SameMemory(const DenseTensor& tensor) {
  const auto& holder = tensor.Holder();
  auto view = std::make_shared<phi::Allocation>(holder->ptr(), holder->size(), phi::CPUPlace());
  return DenseTensor(view, tensor.meta());
}

// A tensor of the shape of `tensor` in `dtype`, without memory.
DenseTensor Empty(const DenseTensor& tensor, DataType dtype) {
  DenseTensor empty;
  phi::DenseTensorMeta meta = tensor.meta();
  meta.dtype = dtype;
  meta.offset = 0;
  if (!meta.valid()) return empty;
  meta.strides = phi::DenseTensorMeta::calc_strides(meta.dims);
  empty.set_meta(meta);
  return empty;
}

bool HasMemory(const DenseTensor& tensor) {
  return tensor.has_allocation() && tensor.Holder()->ptr() != nullptr;
}

// Whether `tensor` has memory of the device for all of its values, as an output that was an input has.
bool HasValues(const DenseTensor& tensor) {
  if (!HasMemory(tensor) || tensor.numel() <= 0) return false;
  if (tensor.place().GetType() == phi::AllocationType::CPU) return false;
  size_t needed = tensor.numel() * phi::SizeOf(tensor.dtype()) + tensor.meta().offset;
  return tensor.Holder()->size() >= needed;
}

DenseTensor Widened(const DenseTensor& tensor) {
  DenseTensor wide = Empty(tensor, DataType::FLOAT32);
  Widen(tensor.data(), tensor.dtype(), Host().Alloc<float>(&wide), tensor.numel());
  return wide;
}

}  // namespace

DenseTensor OnHost(const DenseTensor& given) {
  if (!HasMemory(given)) return given;
  if (IsLow(given.dtype())) {
    PADDLE_ENFORCE_EQ(given.meta().is_contiguous(), true,
                      common::errors::Unimplemented("virtual_gpu: a strided 16-bit input"));
    return Widened(given);
  }
  return given.place().GetType() == phi::AllocationType::CPU ? given : SameMemory(given);
}

DenseTensor PlaceOnHost(DenseTensor* given) {
  if (!HasValues(*given)) return Empty(*given, Wide(given->dtype()));
  // A kernel may read what stands there, as batch norm reads the running statistics in its outputs.
  return IsLow(given->dtype()) ? Widened(*given) : SameMemory(*given);
}

void Deliver(const CustomContext& device, DataType key, const DenseTensor& from, DenseTensor* to) {
  if (!from.has_allocation()) return;  // an output that the kernel leaves out
  DataType dtype = from.dtype();
  if (IsLow(to->dtype())) dtype = to->dtype();
  if (to->dtype() == DataType::UNDEFINED && IsLow(key) && dtype == DataType::FLOAT32) dtype = key;

  if (to->dims() != from.dims()) to->Resize(from.dims());
  void* memory = device.Alloc(to, dtype);
  if (from.numel() == 0 || memory == from.data()) return;
  if (IsLow(dtype) && from.dtype() == DataType::FLOAT32) {
    Narrow(from.data<float>(), dtype, memory, from.numel());
  } else {
    memmove(memory, from.data(), from.numel() * phi::SizeOf(dtype));
  }
}

// -------------------------------------------------------------------- what dtypes a kernel takes together

namespace {

bool IsFloating(DataType dtype) {
  return IsLow(dtype) || dtype == DataType::FLOAT32 || dtype == DataType::FLOAT64;
}

}  // namespace

DtypeCheck::DtypeCheck(const char* name, DataType key) : first_(key), others_(key) {
  static const std::set<std::string> float32_parameters{"batch_norm", "batch_norm_infer",
                                                        "instance_norm"};
  static const std::set<std::string> any{
      // parameters of either dtype
      "layer_norm",
      // scales in float32
      "check_finite_and_unscale", "update_loss_scaling", "bicubic_interp", "bilinear_interp",
      "interp_antialias", "linear_interp", "nearest_interp", "trilinear_interp",
      // cast by the kernel
      "linspace", "logspace",
      // of which the shape alone is read, or nothing
      "depend", "expand_as", "full_like", "reduce_as"};
  std::string kernel(name);
  if (float32_parameters.count(kernel) != 0) others_ = Wide(key);
  // What a forward kernel kept for its gradient may be float32; its inputs were looked at there.
  bool is_gradient = kernel.find("_grad") != std::string::npos;
  if (is_gradient || any.count(kernel) != 0) first_ = others_ = DataType::UNDEFINED;
}

void DtypeCheck::Look(const TensorBase& given) {
  DataType read = first_;
  first_ = others_;
  if (!DenseTensor::classof(&given)) return;
  auto& tensor = static_cast<const DenseTensor&>(given);
  if (!IsFloating(tensor.dtype()) || !HasMemory(tensor)) return;
  switch (read) {  // `data` throws
    case DataType::FLOAT16: tensor.data<phi::dtype::float16>(); break;
    case DataType::BFLOAT16: tensor.data<phi::dtype::bfloat16>(); break;
    case DataType::FLOAT32: tensor.data<float>(); break;
    case DataType::FLOAT64: tensor.data<double>(); break;
    default: break;
  }
}

// ------------------------------------------------------------------------------------------- kernels

thread_local DataType key_of_call = DataType::UNDEFINED;

namespace {

phi::Backend device_backend;

phi::KernelKey HostKey(DataType dtype) {
  return {phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, dtype};
}

// What the CPU's kernel says of its inputs or outputs, said of the device's.
template <typename Definitions>
void Translate(Definitions* definitions, DataType key) {
  for (auto& each : *definitions) {
    if (each.backend == phi::Backend::CPU) each.backend = device_backend;
    if (each.dtype == Wide(key)) each.dtype = key;
  }
}

}  // namespace

const phi::Kernel& CpuKernel(const char* name, DataType key) {
  return phi::KernelFactory::Instance().SelectKernel(name, HostKey(key));
}

void Register(const char* name, DataType key, void* function, phi::KernelFn through_context) {
  auto& kernels = phi::KernelFactory::Instance().kernels();
  auto named = kernels.find(name);
  if (named == kernels.end()) return;
  auto on_host = named->second.find(HostKey(Wide(key)));
  if (on_host == named->second.end()) return;

  phi::Kernel kernel(through_context, function);
  *kernel.mutable_args_def() = on_host->second.args_def();
  Translate(&kernel.mutable_args_def()->input_defs(), key);
  Translate(&kernel.mutable_args_def()->output_defs(), key);
  phi::KernelKey device_key(device_backend, phi::DataLayout::ALL_LAYOUT, key);
  named->second[device_key] = kernel;
}

void RegisterOwnKernels();     // own_kernels.cc
void RegisterLiftedKernels();  // generated

void RegisterKernels(const char* device) {
  device_backend = paddle::experimental::StringToBackend(device);
  RegisterLiftedKernels();
  RegisterOwnKernels();
}

// --------------------------------------------------------------------------------------------- calls

namespace {

std::mutex calls_lock;
std::map<std::string, long> calls;

}  // namespace

void CountCall(const char* kernel, const std::string& dtypes) {
  std::lock_guard<std::mutex> hold(calls_lock);
  ++calls[std::string(kernel) + " " + dtypes];
}

const char* CallsAsText() {
  static std::string text;
  std::lock_guard<std::mutex> hold(calls_lock);
  text.clear();
  for (const auto& [call, count] : calls) text += call + " " + std::to_string(count) + "\n";
  return text.c_str();
}

void ForgetCalls() {
  std::lock_guard<std::mutex> hold(calls_lock);
  calls.clear();
}

}  // namespace virtual_gpu
