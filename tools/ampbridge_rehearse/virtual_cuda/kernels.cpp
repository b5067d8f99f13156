// The device's kernels: the CPU's, on the same memory.
//
//     a kernel of any op:
//         note it
//         its tensors, seen as the CPU's; 16-bit ones widened to float32
//         the CPU's kernel
//         results, and what was written to, rounded once to the dtype they have on CUDA
//
// Ops that torch composes of others are composed here too: only what has a CUDA kernel of its own
// comes to this file.
#include "device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_set>

namespace virtual_device {
namespace {

using at::IValue;
using at::Tensor;
using c10::FunctionSchema;
using c10::ScalarType;
using torch::jit::Stack;

bool is_low(ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

bool is_ours(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == identity.type;
}

// -- tensors of the device, and of the CPU in the same memory

Tensor with_layout_of(const Tensor& like, c10::DataPtr data, size_t bytes, c10::Allocator* allocator,
                      c10::DispatchKey key) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator, allocator != nullptr);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

at::SparseTensorImpl* parts(const Tensor& sparse) {
  return static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
}

Tensor sparse_like(const Tensor& like, const Tensor& indices, const Tensor& values,
                   c10::DispatchKey key) {
  auto sparse = at::detail::make_tensor<at::SparseTensorImpl>(
      c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(values.scalar_type()));
  parts(sparse)->resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  parts(sparse)->set_indices_and_values_unsafe(indices, values);
  parts(sparse)->set_coalesced(parts(like)->coalesced());
  return sparse;
}

} // namespace

Tensor on_cpu(const Tensor& tensor) {
  if (!is_ours(tensor)) {
    return tensor;
  }
  if (tensor.is_sparse()) {
    return sparse_like(tensor, on_cpu(parts(tensor)->indices()), on_cpu(parts(tensor)->values()),
                       c10::DispatchKey::SparseCPU);
  }
  const auto& storage = tensor.storage();
  const Tensor seen =
      with_layout_of(tensor, c10::DataPtr(storage.mutable_data(), c10::Device(c10::kCPU)),
                     storage.nbytes(), nullptr, c10::DispatchKey::CPU);
  if (tensor.is_conj()) { // only copies are handed numbers that are yet to be conjugated or negated
    seen._set_conj(true);
  }
  if (tensor.is_neg()) {
    seen._set_neg(true);
  }
  return seen;
}

Tensor on_device(const Tensor& tensor) {
  if (!tensor.defined() || is_ours(tensor)) {
    return tensor;
  }
  if (tensor.is_sparse()) {
    return sparse_like(tensor, on_device(parts(tensor)->indices()), on_device(parts(tensor)->values()),
                       identity.sparse_key);
  }
  const auto& storage = tensor.storage();
  void* const data = storage.mutable_data();
  auto free = [](void* kept) { delete static_cast<Tensor*>(kept); };
  c10::DataPtr keeps(data, new Tensor(tensor), free, c10::Device(c10::kCPU));
  return with_layout_of(tensor, adopted(data, storage.nbytes(), std::move(keeps)), storage.nbytes(),
                        allocator(), identity.key);
}

namespace {

// -- what CUDA's kernels return in another dtype than their inputs have

// By op: the argument whose dtype each result has, "" for float32. Of
// aten/src/ATen/native/cuda/{layer_norm_kernel,group_norm_kernel,Normalization}.cu, torch 2.13.
const std::map<std::string, std::vector<std::string>>& dtypes_of_results() {
  static const std::map<std::string, std::vector<std::string>> table{
      {"aten::native_layer_norm", {"input", "", ""}},
      {"aten::native_layer_norm_backward", {"input", "weight", "weight"}},
      {"aten::native_group_norm", {"input", "input", "input"}},
      {"aten::native_group_norm_backward", {"input", "weight", "weight"}},
      {"aten::native_batch_norm", {"input", "", ""}},
      {"aten::_native_batch_norm_legit", {"input", "", ""}},
      {"aten::_batch_norm_with_update", {"input", "", "", ""}},
      {"aten::native_batch_norm_backward", {"input", "weight", "weight"}},
      {"aten::batch_norm_backward", {"input", "weight", "weight"}},
      {"aten::_fused_rms_norm", {"input", ""}},
      {"aten::log_sigmoid_forward", {"self", ""}}, // CUDA needs no buffer
  };
  return table;
}

// -- what CUDA has no 16-bit kernels for

// Of the calls of AT_DISPATCH in aten/src/ATen/native/cuda, cuSOLVER's and MAGMA's dtypes, torch 2.13;
// `OpInfo.supported_dtypes("cuda")` of torch.testing says the same. cuFFT has some for float16, of
// sizes that are powers of 2, into complex32, which the CPU lacks.
bool has_no_low_kernel(const std::string& name) {
  static const std::unordered_set<std::string> low{
      "aten::linalg_vector_norm", "aten::linalg__powsum", "aten::linalg_cross",
      "aten::linalg_matrix_exp",  "aten::special_entr",   "aten::special_i0e",
      "aten::special_i1",         "aten::special_i1e",    "aten::special_ndtr",
      "aten::special_xlog1py"};
  static const std::vector<const char*> beginnings{
      "aten::linalg_",    "aten::_linalg_", "aten::cholesky",  "aten::_cholesky",
      "aten::lu_",        "aten::geqrf",    "aten::ormqr",     "aten::triangular_solve",
      "aten::_fft_",      "aten::special_", "aten::_ctc_loss", "aten::_pdist",
      "aten::_cdist",     "aten::igamma",   "aten::histc"};
  const auto begins = [&name](const char* with) { return name.rfind(with, 0) == 0; };
  return !low.count(name) && std::any_of(beginnings.begin(), beginnings.end(), begins);
}

// Products of sparse and dense matrices, by cuSPARSE: aten/src/ATen/native/sparse/cuda.
bool is_sparse_product(const std::string& name) {
  static const std::unordered_set<std::string> named{"aten::mm",  "aten::addmm", "aten::addmm_",
                                                     "aten::bmm", "aten::mv",    "aten::hspmm",
                                                     "aten::sspaddmm"};
  return named.count(name) != 0;
}

// -- what CUDA's kernels refuse: dtypes that do not go together, numbers that 16 bits do not hold
//
// Torch checks both in the dtypes that arrive, which are not those that the CPU's kernel sees here. So
// a call that may be refused runs on the CPU in these dtypes first, on copies, and what torch raises
// there is what it raises on CUDA. The tables are where the kernels of the two do not agree.

// Of aten/src/ATen/native/cuda/{Blas.cpp,layer_norm_kernel.cu,group_norm_kernel.cu}: the CPU's let two
// dtypes pass in products of empty matrices, and for the weights of norms.
bool wants_one_dtype(const std::string& name) {
  static const std::unordered_set<std::string> named{
      "aten::mm",          "aten::addmm",
      "aten::bmm",         "aten::baddbmm",
      "aten::addmv",       "aten::_addmm_activation",
      "aten::dot",         "aten::vdot",
      "aten::convolution", "aten::native_layer_norm",
      "aten::native_group_norm"};
  return named.count(name) != 0;
}

// Which on CUDA take or return statistics, buffers and results in dtypes that the CPU's do not.
bool has_own_dtypes(const std::string& name) {
  static const std::unordered_set<std::string> backward{
      "aten::log_sigmoid_backward", "aten::_softmax_backward_data", "aten::_log_softmax_backward_data"};
  return dtypes_of_results().count(name) || backward.count(name);
}

// Which read a number as `opmath_t`, which is float32, in aten/src/ATen/native/cuda; the CPU's in the
// dtype of the tensor.
bool reads_numbers_wide(const std::string& name) {
  static const std::unordered_set<std::string> named{
      "aten::add",       "aten::sub",      "aten::rsub",      "aten::clamp", "aten::clamp_min",
      "aten::clamp_max", "aten::hardtanh", "aten::hardtanh_", "aten::logit", "aten::logit_",
      "aten::logit_backward"};
  return named.count(name) || name.rfind("aten::_foreach_", 0) == 0;
}

bool holds(ScalarType low, double number) {
  const double largest = low == at::kHalf ? std::numeric_limits<at::Half>::max()
                                          : std::numeric_limits<at::BFloat16>::max();
  return !std::isfinite(number) || std::abs(number) <= largest;
}

// -- where the host waits

// Kernels whose results' shapes, or whose answers, the host has to know.
bool host_waits_for(const std::string& name, const Stack& given) {
  static const std::unordered_set<std::string> waiting{
      "aten::nonzero",  "aten::masked_select",     "aten::equal",      "aten::_unique2",
      "aten::bincount", "aten::unique_consecutive", "aten::unique_dim", "aten::repeat_interleave"};
  if (waiting.count(name)) {
    return true;
  }
  if (name != "aten::_index_put_impl_") {
    return false;
  }
  for (const auto& index : given[1].toListRef()) { // a mask is turned into indices, with nonzero
    if (index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte)) {
      return true;
    }
  }
  return false;
}

// -- random numbers

// While it lives, the CPU's default generator draws what the device's would.
class DrawnBy {
 public:
  explicit DrawnBy(at::Generator generator)
      : lock_(mutex()),
        device_(std::move(generator)),
        cpu_(at::detail::getDefaultCPUGenerator()),
        before_(cpu_.unsafeGetGeneratorImpl()->get_state()) {
    cpu_.unsafeGetGeneratorImpl()->set_state(*device_.unsafeGetGeneratorImpl()->get_state());
  }
  ~DrawnBy() {
    device_.unsafeGetGeneratorImpl()->set_state(*cpu_.unsafeGetGeneratorImpl()->get_state());
    cpu_.unsafeGetGeneratorImpl()->set_state(*before_);
  }
  DrawnBy(const DrawnBy&) = delete;
  DrawnBy& operator=(const DrawnBy&) = delete;

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex one;
    return one;
  }
  std::lock_guard<std::recursive_mutex> lock_;
  at::Generator device_;
  at::Generator cpu_;
  c10::intrusive_ptr<c10::TensorImpl> before_;
};

} // namespace

Tensor drawn_on_cpu(at::IntArrayRef sizes, double probability) {
  const DrawnBy drawn(default_generator());
  return at::empty(sizes).bernoulli_(probability);
}

namespace {

// -- one call

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack given)
      : op_(op), schema_(op.schema()), given_(std::move(given)), low_(low_dtype()) {}

  Stack run() {
    const bool lacks_low = has_no_low_kernel(schema_.name()) ||
        (is_sparse_product(schema_.name()) && takes_sparse_and_dense());
    TORCH_CHECK_NOT_IMPLEMENTED(!low_ || !lacks_low, '"', schema_.name(),
                                "\" not implemented for '", c10::toString(*low_), "'");
    if (low_ && may_be_refused()) {
      rehearse();
    }
    TORCH_CHECK(!low_ || !wants_one_dtype(schema_.name()) || !has_several_dtypes(), mixed_dtypes());
    note();
    Stack stack;
    for (size_t i = 0; i < given_.size(); ++i) {
      stack.push_back(argument(schema_.arguments()[i], given_[i]));
    }
    call_cpu(stack, generator_ ? *generator_ : default_generator());
    for (auto& [tensor, computed] : written_) {
      write_back(tensor, computed);
    }
    Stack results;
    for (size_t i = 0; i < stack.size(); ++i) {
      results.push_back(result(i, std::move(stack[i])));
    }
    return results;
  }

 private:
  // Whether torch may raise for its dtypes, or for a number. Most calls have one dtype and small numbers.
  bool may_be_refused() const {
    const std::string& name = schema_.name();
    return (has_several_dtypes() && !has_own_dtypes(name) && !is_told_to_widen()) ||
        (has_number_too_large() && !reads_numbers_wide(name));
  }

  bool has_several_dtypes() const {
    std::unordered_set<ScalarType> dtypes;
    each_tensor([&](const Tensor& tensor) {
      if (tensor.is_floating_point() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        dtypes.insert(tensor.scalar_type());
      }
    });
    return dtypes.size() > 1;
  }

  bool takes_sparse_and_dense() const {
    bool sparse = false, dense = false;
    each_tensor([&](const Tensor& tensor) { (tensor.is_sparse() ? sparse : dense) = true; });
    return sparse && dense;
  }

  bool has_number_too_large() const {
    return std::any_of(given_.begin(), given_.end(), [&](const IValue& value) {
      return (value.isDouble() || value.isInt()) && !holds(*low_, value.toScalar().toDouble());
    });
  }

  // The CPU's kernel in the dtypes that arrive, for what it raises.
  void rehearse() const {
    try {
      call_on_copies(false);
    } catch (const c10::NotImplementedError&) { // the CPU lacks some 16-bit kernels that CUDA has
      TORCH_CHECK(runs_wider(), mixed_dtypes());
    }
  }

  // As float32 and float64 go together, 16 bits and float32 do.
  bool runs_wider() const {
    try {
      call_on_copies(true);
    } catch (const c10::NotImplementedError&) {
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }

  void call_on_copies(bool wider) const {
    const auto copied = [wider](const Tensor& tensor, bool is_written, bool is_out) {
      Tensor seen = on_cpu(tensor);
      if (wider && tensor.defined() && tensor.is_floating_point()) {
        seen = seen.to(is_low(tensor.scalar_type()) ? at::kFloat : at::kDouble);
      }
      if (is_out) { // of any shape: the kernel may be one that sizes it
        return at::empty({0}, seen.options());
      }
      return tensor.defined() && is_written ? seen.clone() : seen;
    };
    Stack stack;
    for (size_t i = 0; i < given_.size(); ++i) {
      stack.push_back(for_cpu(schema_.arguments()[i], given_[i], copied));
    }
    call_cpu(stack, default_generator().clone());
  }

  std::string mixed_dtypes() const {
    return "expected the tensors of " + schema_.name() + " to have the same dtype";
  }

  void call_cpu(Stack& stack, at::Generator generator) const {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard not_cast(c10::autocast_dispatch_keyset);
    std::optional<DrawnBy> drawn;
    if (op_.hasTag(at::Tag::nondeterministic_seeded)) {
      drawn.emplace(std::move(generator));
    }
    op_.callBoxed(stack);
  }

  // The one 16-bit dtype among the tensors; float32 where there are both; none where there is none.
  std::optional<ScalarType> low_dtype() const {
    std::optional<ScalarType> low;
    each_tensor([&](const Tensor& tensor) {
      if (is_low(tensor.scalar_type())) {
        low = low && *low != tensor.scalar_type() ? at::kFloat : tensor.scalar_type();
      }
    });
    return low;
  }

  template <typename Use>
  void each_tensor(Use use) const {
    for (const auto& value : given_) {
      if (value.isTensor()) {
        if (value.toTensor().defined()) {
          use(value.toTensor());
        }
      } else if (value.isList()) {
        for (const IValue& item : value.toListRef()) {
          if (item.isTensor() && item.toTensor().defined()) {
            use(item.toTensor());
          }
        }
      }
    }
  }

  void note() const {
    if (calls_are_noted()) {
      std::string dtypes;
      each_tensor([&](const Tensor& tensor) {
        dtypes += dtypes.empty() ? "" : " ";
        dtypes += c10::toString(tensor.scalar_type());
      });
      note_call(schema_.name(), dtypes, low_ && is_told_to_widen() ? "Float" : "");
    }
    if (host_waits_for(schema_.name(), given_)) {
      note_wait("read", schema_.name());
    }
  }

  // Given to the CPU: each tensor as `of_tensor(tensor, is written to, is an out=)`.
  template <typename OfTensor>
  static IValue for_cpu(const c10::Argument& declared, const IValue& value, OfTensor of_tensor) {
    const bool is_written = declared.alias_info() && declared.alias_info()->isWrite();
    if (value.isTensor()) {
      return of_tensor(value.toTensor(), is_written, declared.is_out());
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) {
        list.push_back(of_tensor(tensor, is_written, declared.is_out()));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::make_optional(of_tensor(*tensor, false, false)) : tensor);
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == identity.type) {
      return c10::Device(c10::kCPU);
    }
    return value.isGenerator() ? IValue() : value; // the CPU's default one draws: DrawnBy
  }

  IValue argument(const c10::Argument& declared, const IValue& value) {
    if (value.isGenerator()) {
      generator_ = value.toGenerator();
    }
    if (low_ && declared.name() == "half_to_float") {
      return false; // the input is float32 already
    }
    if (low_ && (declared.name() == "dtype" || declared.name() == "input_dtype") && value.isInt() &&
        is_low(value.toScalarType())) {
      return at::kFloat;
    }
    return for_cpu(declared, value, [this](const Tensor& tensor, bool is_written, bool is_out) {
      return argument(tensor, is_written, is_out);
    });
  }

  Tensor argument(const Tensor& tensor, bool is_written, bool is_out) {
    if (!tensor.defined()) {
      return tensor;
    }
    const bool is_widened = is_low(tensor.scalar_type());
    Tensor seen = on_cpu(tensor);
    if (is_out) { // of any shape: the kernel may be one that sizes it
      seen = at::empty({0}, seen.options().dtype(is_widened ? at::kFloat : tensor.scalar_type()));
    } else if (is_widened) {
      seen = seen.to(at::kFloat);
    }
    remember_memory(tensor);
    if (is_written && (is_widened || is_out || (is_ours(tensor) && tensor.is_sparse()))) {
      written_.emplace_back(tensor, seen);
    }
    return seen;
  }

  void write_back(const Tensor& tensor, const Tensor& computed) const {
    if (tensor.is_sparse()) {
      write_back_parts(tensor, computed);
      return;
    }
    if (tensor.sizes() != computed.sizes()) {
      tensor.resize_(computed.sizes());
    }
    on_cpu(tensor).copy_(computed);
  }

  void write_back_parts(const Tensor& tensor, const Tensor& computed) const {
    const Tensor owned = shares_memory(computed) ? computed.clone() : computed;
    const Tensor values = parts(owned)->values().to(tensor.scalar_type());
    parts(tensor)->resize_(owned.sparse_dim(), owned.dense_dim(), owned.sizes());
    parts(tensor)->set_indices_and_values_unsafe(on_device(parts(owned)->indices()), on_device(values));
    parts(tensor)->set_coalesced(owned.is_coalesced());
  }

  IValue result(size_t index, IValue value) {
    const auto* alias = schema_.returns()[index].alias_info();
    if (alias && alias->isWrite()) {
      return written_argument(*alias);
    }
    if (value.isTensor()) {
      return result(index, value.toTensor(), alias != nullptr);
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) {
        list.push_back(result(index, tensor, alias != nullptr));
      }
      return list;
    }
    return value;
  }

  Tensor result(size_t index, Tensor tensor, bool is_view) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (low_ && tensor.scalar_type() == at::kFloat) {
      tensor = tensor.to(dtype_of_result(index));
    }
    if (shares_memory(tensor)) {
      TORCH_CHECK_NOT_IMPLEMENTED(!is_view, schema_.name(), " is no view on the virtual device.");
      tensor = tensor.clone();
    }
    return on_device(tensor);
  }

  void remember_memory(const Tensor& tensor) {
    if (!is_ours(tensor)) {
      return;
    }
    if (tensor.is_sparse()) {
      remember_memory(parts(tensor)->indices());
      remember_memory(parts(tensor)->values());
    } else {
      memory_.insert(tensor.storage().data());
    }
  }

  bool shares_memory(const Tensor& tensor) const {
    if (tensor.is_sparse()) {
      return shares_memory(parts(tensor)->indices()) || shares_memory(parts(tensor)->values());
    }
    return tensor.numel() > 0 && memory_.count(tensor.storage().data());
  }

  ScalarType dtype_of_result(size_t index) const {
    const auto named = dtypes_of_results().find(schema_.name());
    if (named != dtypes_of_results().end()) {
      const std::string& name = named->second.at(index);
      const Tensor* like = name.empty() ? nullptr : tensor_named(name);
      return like ? like->scalar_type() : at::kFloat;
    }
    if (has_dtype()) {
      return at::kFloat;
    }
    bool all_low = true;
    each_tensor([&](const Tensor& tensor) {
      all_low = all_low && (!tensor.is_floating_point() || is_low(tensor.scalar_type()) ||
                            tensor.unsafeGetTensorImpl()->is_wrapped_number());
    });
    return all_low ? *low_ : at::kFloat;
  }

  // CUDA's autocast has sums and softmax read 16 bits and compute in float32.
  bool is_told_to_widen() const {
    const auto index = schema_.argumentIndexWithName("half_to_float");
    return has_dtype() || (index && given_[*index].isBool() && given_[*index].toBool());
  }

  const Tensor* tensor_named(const std::string& name) const {
    const auto index = schema_.argumentIndexWithName(name);
    const bool is_there = index && given_[*index].isTensor() && given_[*index].toTensor().defined();
    return is_there ? &given_[*index].toTensor() : nullptr;
  }

  bool has_dtype() const {
    const auto index = schema_.argumentIndexWithName("dtype");
    return index && given_[*index].isInt() && !is_low(given_[*index].toScalarType());
  }

  const IValue& written_argument(const c10::AliasInfo& alias) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      const auto* own = schema_.arguments()[i].alias_info();
      if (own && own->beforeSets() == alias.beforeSets()) {
        return given_[i];
      }
    }
    TORCH_INTERNAL_ASSERT(false, schema_.name(), " returns what it was not given");
  }

  const c10::OperatorHandle& op_;
  const FunctionSchema& schema_;
  const Stack given_;
  const std::optional<ScalarType> low_;
  std::optional<at::Generator> generator_;
  std::vector<std::pair<Tensor, Tensor>> written_; // of the device, and computed on the CPU
  std::unordered_set<const void*> memory_; // of the device, which results of the CPU's must not share
};

void run(const c10::OperatorHandle& op, Stack* stack) {
  const Timed timed;
  Call call(op, torch::jit::pop(*stack, op.schema().arguments().size()));
  for (auto& result : call.run()) {
    stack->push_back(std::move(result));
  }
}

// -- kernels of their own: memory, views, copies between devices

// The words of CUDA's runtime.
void check_is_there(std::optional<c10::Device> device) {
  TORCH_CHECK(!device || device->index() <= 0,
              "CUDA error: invalid device ordinal\n"
              "GPU device may be out of range, do you have enough GPUs?");
}

Tensor empty(c10::SymIntArrayRef size, std::optional<ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device> device, std::optional<bool>,
             std::optional<c10::MemoryFormat> format) {
  check_is_there(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), allocator(),
                                   c10::DispatchKeySet(identity.key), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<ScalarType> dtype, std::optional<c10::Layout>,
                     std::optional<c10::Device> device, std::optional<bool>) {
  check_is_there(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), allocator(),
      c10::DispatchKeySet(identity.key), c10::dtype_or_default(dtype));
}

// Zeros without memory, which torch's forward-mode AD knows by their key.
Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<ScalarType> dtype,
                       std::optional<c10::Layout>, std::optional<c10::Device> device,
                       std::optional<bool>) {
  check_is_there(device);
  static auto* const none = new at::native::ZeroTensorAllocator(the_device());
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), none,
                                   c10::DispatchKeySet({identity.key, c10::DispatchKey::ZeroTensor}),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::make_optional(offset->expect_int()) : std::nullopt);
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size,
                     std::optional<c10::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset.expect_int(),
                                      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor& set_empty(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator(), true);
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  const Timed timed;
  if (is_ours(self) != is_ours(source) && !non_blocking) {
    note_wait(is_ours(self) ? "write" : "read", "aten::copy_");
  }
  if (calls_are_noted()) {
    note_call("aten::copy_", std::string(c10::toString(self.scalar_type())) + " " +
                                 c10::toString(source.scalar_type()));
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  on_cpu(self).copy_(on_cpu(source));
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  note_wait("read", "aten::_local_scalar_dense");
  return at::_local_scalar_dense(on_cpu(self));
}

void record_stream(Tensor&, c10::Stream) {}

// Of sparse tensors: their parts are of the device already.
Tensor indices(const Tensor& self) {
  return parts(self)->indices().alias();
}
Tensor values(const Tensor& self) {
  return parts(self)->values().alias();
}
int64_t sparse_dim(const Tensor& self) {
  return parts(self)->sparse_dim();
}
int64_t dense_dim(const Tensor& self) {
  return parts(self)->dense_dim();
}
int64_t nnz(const Tensor& self) {
  return parts(self)->nnz();
}
bool is_coalesced(const Tensor& self) {
  return parts(self)->coalesced();
}
Tensor& set_coalesced(Tensor& self, bool coalesced) {
  parts(self)->set_coalesced(coalesced);
  return self;
}

// Whether an op is one kernel on CUDA, though torch can compose it of others.
bool is_one_kernel(const c10::OperatorName& op) {
  static const std::unordered_set<std::string> named{
      "aten::convolution",       "aten::convolution_backward", "aten::native_layer_norm",
      "aten::native_group_norm", "aten::_fused_rms_norm",      "aten::mish_backward",
      "aten::linalg__powsum",    "aten::_chunk_cat",           "aten::addr",
      "aten::_grouped_mm",       "aten::silu_backward"};
  const auto begins = [&op](const char* with) { return op.name.rfind(with, 0) == 0; };
  const bool is_out = op.overload_name.find("out") != std::string::npos;
  const bool is_update = begins("aten::_fused_") && op.name.back() == '_';
  return (named.count(op.name) && op.overload_name.empty()) ||
      ((begins("aten::_foreach_") || is_update) && !is_out);
}

// -- registration

void register_fallback(c10::DispatchKey key) {
  torch::Library& m = kernels_for("_", key);
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

void implement(torch::Library& m, const c10::OperatorName& op) {
  const auto full = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
  m.impl(full.substr(std::strlen("aten::")).c_str(),
         torch::CppFunction::makeFromBoxedFunction<&run>());
}

void register_sparse() {
  torch::Library& m = kernels_for("aten", identity.sparse_key);
  m.impl("_indices", &indices);
  m.impl("indices", &indices);
  m.impl("_values", &values);
  m.impl("values", &values);
  m.impl("sparse_dim", &sparse_dim);
  m.impl("dense_dim", &dense_dim);
  m.impl("_dimI", &sparse_dim);
  m.impl("_dimV", &dense_dim);
  m.impl("_nnz", &nnz);
  m.impl("is_coalesced", &is_coalesced);
  m.impl("_coalesced_", &set_coalesced);

  // Of the rest what the CPU has kernels of: torch composes others of what sparse tensors lack.
  // layouts.py refuses to turn them into those of other layouts.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.name.rfind("aten::", 0) == 0 && name.name.rfind("aten::_to_sparse_", 0) != 0 &&
        op->hasKernelForDispatchKey(c10::DispatchKey::SparseCPU) &&
        !op->hasKernelForDispatchKey(identity.sparse_key)) {
      implement(m, name);
    }
  }
}

void register_own() {
  torch::Library& m = kernels_for("aten", identity.key);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("copy_", &copy);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);

  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (is_one_kernel(op)) {
      implement(m, op);
    }
  }
}

} // namespace

void register_kernels() {
  register_fallback(identity.key);
  register_fallback(identity.sparse_key);
  register_own();
  register_sparse();
}

} // namespace virtual_device
