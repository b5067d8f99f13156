// Lifting: a kernel of the device made of the CPU's kernel of the same name.
//
// The device's memory is the host's, so that a CPU kernel can read it where it is. In float16 and
// bfloat16, for which the CPU has few kernels, the float32 kernel runs on widened copies of the inputs,
// and what comes out is rounded once, to nearest even: what Tensor Cores do to products, and CUDA's
// kernels to everything else.

#pragma once

#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "paddle/phi/backends/all_context.h"
#include "paddle/phi/common/int_array.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/custom_kernel.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/phi/core/kernel_utils.h"

namespace virtual_gpu {

using phi::CPUContext;
using phi::CustomContext;
using phi::DataType;
using phi::DenseTensor;
using phi::TensorBase;

void RegisterKernels(const char* device);
const char* CallsAsText();
void ForgetCalls();

inline bool IsLow(DataType dtype) {
  return dtype == DataType::FLOAT16 || dtype == DataType::BFLOAT16;
}

// The dtype in which the CPU computes what the device has in `dtype`.
inline DataType Wide(DataType dtype) { return IsLow(dtype) ? DataType::FLOAT32 : dtype; }

void Widen(const void* from, DataType dtype, float* to, int64_t count);
void Narrow(const float* from, DataType dtype, void* to, int64_t count);

const CPUContext& Host();

// What a CPU kernel reads in the place of `given`: the same memory, or a widened copy.
DenseTensor OnHost(const DenseTensor& given);

// What a CPU kernel writes to in the place of `given`: the same memory if there are values, or a tensor of its own.
DenseTensor PlaceOnHost(DenseTensor* given);

// `from`, which a CPU kernel of `key` has written, as the output `to` of the device's kernel.
void Deliver(const CustomContext& device, DataType key, const DenseTensor& from, DenseTensor* to);

void CountCall(const char* kernel, const std::string& dtypes);

// -------------------------------------------------------------------- what dtypes a kernel takes together

// Throws what a GPU's kernel of `key` does when a floating-point input is not of the dtype that it reads.
class DtypeCheck {
 public:
  DtypeCheck(const char* kernel, DataType key);
  template <typename T>
  void operator()(const T& given) {
    if constexpr (std::is_base_of_v<TensorBase, T>) Look(given);
  }
  void operator()(const paddle::optional<DenseTensor>& given) {
    if (given) (*this)(*given);
  }
  template <typename Tensor>
  void operator()(const std::vector<const Tensor*>& given) {
    for (const Tensor* each : given) {
      if (each != nullptr) (*this)(*each);
    }
  }

 private:
  void Look(const TensorBase& given);
  DataType first_, others_;  // UNDEFINED: any dtype
};

// ---------------------------------------------------------------- how each type of argument is taken

// Attributes as they are.
template <typename T>
struct Argument {
  T given;
  Argument(const CustomContext&, DataType, T given) : given(given) {}
  T get() { return given; }
  void finish() {}
};

// A dtype that is asked for: the output is rounded to it afterwards.
template <>
struct Argument<DataType> {
  DataType wide;
  Argument(const CustomContext&, DataType, DataType given) : wide(Wide(given)) {}
  DataType get() { return wide; }
  void finish() {}
};

template <>
struct Argument<const DenseTensor&> {
  DenseTensor host;
  Argument(const CustomContext&, DataType, const DenseTensor& given) : host(OnHost(given)) {}
  const DenseTensor& get() { return host; }
  void finish() {}
};

template <>
struct Argument<const paddle::optional<DenseTensor>&> {
  paddle::optional<DenseTensor> host;
  Argument(const CustomContext&, DataType, const paddle::optional<DenseTensor>& given) {
    if (given) host = OnHost(*given);
  }
  const paddle::optional<DenseTensor>& get() { return host; }
  void finish() {}
};

// Lists may hold null pointers; those of add_n also tensors of other kinds.
template <typename Tensor>
struct ListOnHost {
  std::deque<DenseTensor> tensors;
  std::vector<const Tensor*> pointers;
  explicit ListOnHost(const std::vector<const Tensor*>& given) {
    for (const Tensor* each : given) {
      if (each == nullptr || !DenseTensor::classof(each)) {
        pointers.push_back(each);
        continue;
      }
      tensors.push_back(OnHost(*static_cast<const DenseTensor*>(each)));
      pointers.push_back(&tensors.back());
    }
  }
};

template <typename Tensor>
struct Argument<const std::vector<const Tensor*>&> {
  ListOnHost<Tensor> host;
  Argument(const CustomContext&, DataType, const std::vector<const Tensor*>& given) : host(given) {}
  const std::vector<const Tensor*>& get() { return host.pointers; }
  void finish() {}
};

template <>
struct Argument<const paddle::optional<std::vector<const DenseTensor*>>&> {
  std::deque<ListOnHost<DenseTensor>> host;
  paddle::optional<std::vector<const DenseTensor*>> pointers;
  Argument(const CustomContext&, DataType,
           const paddle::optional<std::vector<const DenseTensor*>>& given) {
    if (!given) return;
    host.emplace_back(*given);
    pointers = host.back().pointers;
  }
  const paddle::optional<std::vector<const DenseTensor*>>& get() { return pointers; }
  void finish() {}
};

template <>
struct Argument<DenseTensor*> {
  const CustomContext& device;
  DataType key;
  DenseTensor* given;
  DenseTensor host;
  Argument(const CustomContext& device, DataType key, DenseTensor* given)
      : device(device), key(key), given(given) {
    if (given != nullptr) host = PlaceOnHost(given);
  }
  DenseTensor* get() { return given == nullptr ? nullptr : &host; }
  void finish() {
    if (given != nullptr) Deliver(device, key, host, given);
  }
};

template <>
struct Argument<std::vector<DenseTensor*>> {
  std::deque<Argument<DenseTensor*>> outputs;
  Argument(const CustomContext& device, DataType key, const std::vector<DenseTensor*>& given) {
    for (DenseTensor* each : given) outputs.emplace_back(device, key, each);
  }
  std::vector<DenseTensor*> get() {
    std::vector<DenseTensor*> pointers;
    for (auto& each : outputs) pointers.push_back(each.get());
    return pointers;
  }
  void finish() {
    for (auto& each : outputs) each.finish();
  }
};

// --------------------------------------------------------------------------------------- the kernels

const phi::Kernel& CpuKernel(const char* name, DataType key);

// `name` for tensors of `key`: by its own function, and through a context as programs call it.
void Register(const char* name, DataType key, void* function, phi::KernelFn through_context);

template <typename... A>
using CpuFunction = void (*)(const CPUContext&, A...);

template <typename... A>
void Compute(CpuFunction<A...> kernel, const CustomContext&, Argument<A>&&... arguments) {
  kernel(Host(), arguments.get()...);
  (arguments.finish(), ...);
}

template <typename... A>
void RunOnHost(const char* name, DataType key, const CustomContext& device, A... given) {
  auto kernel = CpuKernel(name, Wide(key)).template GetVariadicKernelFn<CpuFunction<A...>>();
  Compute<A...>(*kernel, device, Argument<A>(device, key, static_cast<A>(given))...);
}

// Which key a program's call is for: one function takes the arguments out of the context for all keys.
extern thread_local DataType key_of_call;

// `K`: the kernel's name, and as `type` the C++ type of its arguments.
template <typename K, typename Type = typename K::type>
struct Lifted;

template <typename K, typename... A>
struct Lifted<K, void(A...)> {
  static void Run(DataType key, const CustomContext& device, A... given) {
    CountCall(K::name, phi::DataTypeToString(key));
    K::template RunAs<A...>(key, device, static_cast<A>(given)...);
  }
  template <DataType KEY>
  static void RunFor(const CustomContext& device, A... given) {
    Run(KEY, device, static_cast<A>(given)...);
  }
  static void RunForKeyOfCall(const CustomContext& device, A... given) {
    Run(key_of_call, device, static_cast<A>(given)...);
  }
  template <DataType KEY>
  static void RunFromContext(phi::KernelContext* context) {
    key_of_call = KEY;
    phi::KernelImpl<decltype(&RunForKeyOfCall), &RunForKeyOfCall>::Compute(context);
  }
};

template <typename K, DataType... KEYS>
void Lift() {
  (Register(K::name, KEYS, reinterpret_cast<void*>(&Lifted<K>::template RunFor<KEYS>),
            &Lifted<K>::template RunFromContext<KEYS>),
   ...);
}


template <typename K>
struct OfName {
  template <typename... A>
  static void RunAs(DataType key, const CustomContext& device, A... given) {
    DtypeCheck check(K::name, key);
    (check(given), ...);
    RunOnHost<A...>(K::name, key, device, static_cast<A>(given)...);
  }
};

// An optimizer's kernel. Most of the CPU's know no master weights: where there is one, it is stepped in
// the parameter's place, and the parameter is what comes out, rounded.
template <typename K, int MASTER, int PARAMETER_OUT, int MASTER_OUT>
struct OfOptimizer {
  template <typename... A>
  static void RunAs(DataType key, const CustomContext& device, A... given) {
    std::tuple<A...> arguments(static_cast<A>(given)...);
    const paddle::optional<DenseTensor>& master = std::get<MASTER>(arguments);
    if (!IsLow(key) || !master) {
      RunOnHost<A...>(K::name, key, device, static_cast<A>(given)...);
      return;
    }
    DenseTensor stepped;
    stepped.set_meta(master->meta());
    StepMaster<A...>(device, *master, &stepped, arguments, std::index_sequence_for<A...>{});
    DenseTensor* master_out = std::get<MASTER_OUT>(arguments);
    DenseTensor* parameter_out = std::get<PARAMETER_OUT>(arguments);
    Deliver(device, DataType::FLOAT32, stepped, master_out);
    Narrow(stepped.data<float>(), key, device.Alloc(parameter_out, key), stepped.numel());
  }

 private:
  template <typename... A, size_t... I>
  static void StepMaster(const CustomContext& device, const DenseTensor& master,
                         DenseTensor* stepped, std::tuple<A...>& arguments,
                         std::index_sequence<I...>) {
    RunOnHost<A...>(K::name, DataType::FLOAT32, device,
                    Chosen<I, A>(master, stepped, std::get<I>(arguments))...);
  }
  template <size_t I, typename T>
  static T Chosen(const DenseTensor& master, DenseTensor* stepped, T given) {
    if constexpr (I == 0) return master;
    else if constexpr (I == PARAMETER_OUT) return stepped;
    else return given;
  }
};

// A line of the generated sources. Signatures hold commas, hence the variadic macros.
#define LIFTED(kernel, ...)                        \
  struct Kernel_##kernel : OfName<Kernel_##kernel> { \
    static constexpr const char* name = #kernel;   \
    using type = void(__VA_ARGS__);                \
  };

#define LIFTED_OPTIMIZER(kernel, master, parameter_out, master_out, ...)                         \
  struct Kernel_##kernel : OfOptimizer<Kernel_##kernel, master, parameter_out, master_out> {      \
    static constexpr const char* name = #kernel;                                                  \
    using type = void(__VA_ARGS__);                                                               \
  };

}  // namespace virtual_gpu
