// Kernels that are written here: casts, which round by themselves, and copies, for every dtype.
//
// Of the copies Paddle asks on the way to other kernels, where it does not fall back to the CPU.

#include <cstring>
#include <vector>

#include "lifting.h"

namespace virtual_gpu {
namespace {

using phi::DDim;

void CastTo(DataType key, const CustomContext& device, const DenseTensor& x, DataType to,
            DenseTensor* out) {
  CountCall("cast", phi::DataTypeToString(key) + "->" + phi::DataTypeToString(to));
  DenseTensor wide = OnHost(x);
  DenseTensor converted = wide;
  if (wide.dtype() != Wide(to)) {
    using Cast = CpuFunction<const DenseTensor&, DataType, DenseTensor*>;
    auto kernel = CpuKernel("cast", Wide(key)).GetVariadicKernelFn<Cast>();
    converted = DenseTensor();
    converted.Resize(wide.dims());
    (*kernel)(Host(), wide, Wide(to), &converted);
  }
  void* memory = device.Alloc(out, to);
  if (converted.numel() == 0) return;
  if (IsLow(to)) {
    Narrow(converted.data<float>(), to, memory, converted.numel());
  } else {
    memmove(memory, converted.data(), converted.numel() * phi::SizeOf(to));
  }
}

template <DataType KEY>
void Cast(const CustomContext& device, const DenseTensor& x, DataType to, DenseTensor* out) {
  CastTo(KEY, device, x, to, out);
}

// Values in row-major order of `dims`, from one layout into another; strides count values.
template <typename Value>
void CopyStrided(const void* from, const DDim& from_strides, void* to, const DDim& to_strides,
                 const DDim& dims) {
  auto* source = static_cast<const Value*>(from);
  auto* target = static_cast<Value*>(to);
  std::vector<int64_t> index(dims.size(), 0);
  int64_t at_source = 0, at_target = 0;
  for (int64_t left = phi::product(dims); left > 0; --left) {
    target[at_target] = source[at_source];
    for (int axis = dims.size() - 1; axis >= 0; --axis) {
      at_source += from_strides[axis];
      at_target += to_strides[axis];
      if (++index[axis] < dims[axis]) break;
      at_source -= from_strides[axis] * dims[axis];
      at_target -= to_strides[axis] * dims[axis];
      index[axis] = 0;
    }
  }
}

void CopyStrided(DataType dtype, const void* from, const DDim& from_strides, void* to,
                 const DDim& to_strides, const DDim& dims) {
  switch (phi::SizeOf(dtype)) {
    case 1: return CopyStrided<uint8_t>(from, from_strides, to, to_strides, dims);
    case 2: return CopyStrided<uint16_t>(from, from_strides, to, to_strides, dims);
    case 4: return CopyStrided<uint32_t>(from, from_strides, to, to_strides, dims);
    case 8: return CopyStrided<uint64_t>(from, from_strides, to, to_strides, dims);
    default: PADDLE_THROW(common::errors::Unimplemented("virtual_gpu: copy of this dtype"));
  }
}

void Contiguous(const CustomContext& device, const DenseTensor& x, DenseTensor* out) {
  DenseTensor from(x);  // `out` may be `x`
  phi::DenseTensorMeta meta = x.meta();
  meta.strides = phi::DenseTensorMeta::calc_strides(meta.dims);
  meta.offset = 0;
  out->set_meta(meta);
  void* memory = device.Alloc(out, from.dtype());
  if (from.numel() == 0) return;
  CopyStrided(from.dtype(), from.data(), from.strides(), memory, meta.strides, meta.dims);
}

void StridedCopy(const CustomContext&, const DenseTensor& x, const std::vector<int64_t>& dims,
                 const std::vector<int64_t>& strides, int64_t offset, DenseTensor* out) {
  phi::DenseTensorMeta meta = out->meta();
  meta.dims = common::make_ddim(dims);
  meta.strides = common::make_ddim(strides);
  meta.offset = offset;
  out->set_meta(meta);
  if (x.numel() == 0) return;
  CopyStrided(x.dtype(), x.data(), x.strides(), out->data(), meta.strides, x.dims());
}

void Assign(const CustomContext& device, const DenseTensor& x, DenseTensor* out) {
  if (out->dims() != x.dims()) out->Resize(x.dims());
  void* memory = device.Alloc(out, x.dtype());
  if (x.numel() != 0) memmove(memory, x.data(), x.numel() * phi::SizeOf(x.dtype()));
}

// What a program calls; without an input there is no output.
void AssignRaw(const CustomContext& device, const paddle::optional<DenseTensor>& x,
               DenseTensor* out) {
  if (x) Assign(device, *x, out);
}

template <auto FUNCTION>
void RegisterFor(const char* name, DataType key) {
  Register(name, key, reinterpret_cast<void*>(FUNCTION),
           &phi::KernelImpl<decltype(FUNCTION), FUNCTION>::Compute);
}

template <DataType... KEYS>
void RegisterForEach() {
  (RegisterFor<&Cast<KEYS>>("cast", KEYS), ...);
  (RegisterFor<&Contiguous>("contiguous", KEYS), ...);
  (RegisterFor<&StridedCopy>("strided_copy", KEYS), ...);
  (RegisterFor<&Assign>("assign", KEYS), ...);
  (RegisterFor<&AssignRaw>("assign_raw", KEYS), ...);
}

}  // namespace

void RegisterOwnKernels() {
  RegisterForEach<DataType::FLOAT16, DataType::BFLOAT16, DataType::FLOAT32, DataType::FLOAT64,
                  DataType::INT64, DataType::INT32, DataType::INT16, DataType::INT8,
                  DataType::UINT8, DataType::BOOL>();
}

}  // namespace virtual_gpu
