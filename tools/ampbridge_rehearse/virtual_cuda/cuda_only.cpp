// Kernels that CUDA has and the CPU lacks, composed of the CPU's in float32 and rounded once.
//
// The cells are those of aten/src/ATen/native/cuda/RNN.cu; attention is the CPU's flash kernel in the
// place of CUDA's memory-efficient one. Checked with torch 2.13.
#include "device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace virtual_device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// On the CPU, 16-bit numbers in float32.
Tensor wide(const Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  const Tensor seen = on_cpu(tensor);
  return at::isReducedFloatingType(seen.scalar_type()) ? seen.to(at::kFloat) : seen;
}

OptionalTensor wide(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? std::make_optional(wide(*tensor)) : std::nullopt;
}

Tensor rounded(const Tensor& tensor, const Tensor& like) {
  return tensor.defined() ? on_device(tensor.to(like.scalar_type())) : tensor;
}

Tensor or_zeros(const OptionalTensor& tensor, const Tensor& like) {
  return tensor && tensor->defined() ? wide(*tensor) : at::zeros_like(like);
}

Tensor plus(const Tensor& tensor, const OptionalTensor& bias) {
  return bias && bias->defined() ? tensor + wide(*bias) : tensor;
}

// -- recurrent cells

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_call("aten::_thnn_fused_lstm_cell", c10::toString(input_gates.scalar_type()));
  const auto sums = plus(wide(input_gates), input_bias) + plus(wide(hidden_gates), hidden_bias);
  const auto parts = sums.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
             out = parts[3].sigmoid();
  const auto cy = forget * wide(cx) + in * cell;
  const auto hy = out * cy.tanh();
  const auto workspace = at::cat({in, forget, cell, out}, 1);
  return {rounded(hy, cx), rounded(cy, cx), rounded(workspace, cx)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!(grad_hy && grad_hy->defined()) && !(grad_cy && grad_cy->defined())) {
    return {};
  }
  note_call("aten::_thnn_fused_lstm_cell_backward_impl", c10::toString(cx.scalar_type()));
  const auto parts = wide(workspace).chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto squashed = wide(cy).tanh();
  const auto of_hy = or_zeros(grad_hy, squashed), of_cy = or_zeros(grad_cy, squashed);
  const auto of_cell_state = of_hy * out * (1 - squashed * squashed) + of_cy;
  const auto of_gates = at::cat({of_cell_state * cell * (1 - in) * in,
                                 of_cell_state * wide(cx) * (1 - forget) * forget,
                                 of_cell_state * in * (1 - cell * cell),
                                 of_hy * squashed * (1 - out) * out},
                                1);
  const auto of_gates_rounded = rounded(of_gates, workspace);
  const auto of_bias = has_bias ? of_gates_rounded.sum(0, false) : Tensor();
  return {of_gates_rounded, rounded(of_cell_state * forget, cx), of_bias};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_call("aten::_thnn_fused_gru_cell", c10::toString(input_gates.scalar_type()));
  const auto of_input = plus(wide(input_gates), input_bias).chunk(3, 1);
  const auto of_hidden = plus(wide(hidden_gates), hidden_bias).chunk(3, 1);
  const auto before = wide(hx);
  const auto reset = (of_input[0] + of_hidden[0]).sigmoid();
  const auto update = (of_input[1] + of_hidden[1]).sigmoid();
  const auto fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  const auto hy = fresh + update * (before - fresh);
  const auto workspace = at::cat({reset, update, fresh, before, of_hidden[2]}, 1);
  return {rounded(hy, hx), rounded(workspace, hx)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_call("aten::_thnn_fused_gru_cell_backward", c10::toString(grad_hy.scalar_type()));
  const auto parts = wide(workspace).chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &fresh = parts[2], &before = parts[3],
             &hidden = parts[4];
  const auto of_hy = wide(grad_hy);
  const auto of_update = of_hy * (before - fresh) * (1 - update) * update;
  const auto of_fresh = of_hy * (1 - update) * (1 - fresh * fresh);
  const auto of_reset = of_fresh * hidden * (1 - reset) * reset;
  const auto of_input = rounded(at::cat({of_reset, of_update, of_fresh}, 1), grad_hy);
  const auto of_hidden = rounded(at::cat({of_reset, of_update, of_fresh * reset}, 1), grad_hy);
  const auto of_before = rounded(of_hy * update, grad_hy);
  if (!has_bias) {
    return {of_input, of_hidden, of_before, Tensor(), Tensor()};
  }
  return {of_input, of_hidden, of_before, of_input.sum(0, false), of_hidden.sum(0, false)};
}

// -- RMSNorm

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out, const Tensor& input,
                                             at::IntArrayRef normalized, const Tensor& rstd,
                                             const OptionalTensor& weight,
                                             std::array<bool, 2> wanted) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_call("aten::_fused_rms_norm_backward", c10::toString(input.scalar_type()));
  std::vector<int64_t> inner, outer;
  const auto first_inner = input.dim() - static_cast<int64_t>(normalized.size());
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    (dim < first_inner ? outer : inner).push_back(dim);
  }
  const auto of_out = wide(grad_out), scale = wide(rstd), x = wide(input) * scale;
  const auto of_x = weight && weight->defined() ? of_out * wide(*weight) : of_out;
  const auto of_input = scale * (of_x - x * (of_x * x).mean(inner, true));
  const auto of_weight = outer.empty() ? of_out * x : (of_out * x).sum(outer);
  return {wanted[0] ? rounded(of_input, input) : Tensor(),
          wanted[1] && weight && weight->defined() ? rounded(of_weight, *weight) : Tensor()};
}

// -- attention

// In 16 bits and without a mask CUDA's flash kernel lets heads share keys; here it is the same kernel.
// Not while torch.compile traces: the shapes that it expects of this kernel are for keys of their own.
int64_t attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& mask, double /*dropout*/, bool /*is_causal*/,
                         std::optional<double> /*scale*/, bool shares_keys) {
  const bool is_allowed = at::globalContext().userEnabledFlashSDP() ||
      at::globalContext().userEnabledMemEfficientSDP();
  const bool has_plain_mask = !mask || !mask->requires_grad();
  const bool fits = query.dim() == 4 && query.size(3) == value.size(3) && query.numel() > 0 &&
      key.numel() > 0 &&
      (!shares_keys ||
       (!mask && at::isReducedFloatingType(query.scalar_type()) &&
        !query.key_set().has(c10::DispatchKey::Python)));
  const auto kernel = is_allowed && has_plain_mask && fits ? sdp::SDPBackend::efficient_attention
                                                           : sdp::SDPBackend::math;
  return static_cast<int64_t>(kernel);
}

// One key for each head of the query.
Tensor for_each_head(const Tensor& shared, const Tensor& query) {
  const auto heads = query.size(1) / shared.size(1);
  return heads == 1 ? wide(shared) : wide(shared).repeat_interleave(heads, 1);
}

// The gradient of a key that heads share.
Tensor of_shared(const Tensor& gradient, const Tensor& shared) {
  const auto heads = gradient.size(1) / shared.size(1);
  return heads == 1 ? gradient : gradient.unflatten(1, {shared.size(1), heads}).sum(2);
}

// In the layout of CUDA's results: the heads of a position side by side.
Tensor positions_first(const Tensor& tensor) {
  return tensor.transpose(1, 2).contiguous().transpose(1, 2);
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
}

Tensor probabilities(const Tensor& query, const Tensor& key, const OptionalTensor& bias,
                     bool is_causal, double scale) {
  auto scores = plus(at::matmul(query * scale, key.transpose(-2, -1)), bias);
  if (is_causal) {
    const auto seen = at::ones({query.size(2), key.size(2)}, at::kBool).tril();
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<float>::infinity());
  }
  return at::_safe_softmax(scores, -1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention(const Tensor& query, const Tensor& key,
                                                     const Tensor& value, const OptionalTensor& bias,
                                                     bool /*compute_log_sumexp*/, double dropout,
                                                     bool is_causal, std::optional<double> scale) {
  TORCH_CHECK(!bias || !bias->defined() || bias->scalar_type() == query.scalar_type(),
              "invalid dtype for bias - should match query's dtype"); // CUDA's words
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_call("aten::_scaled_dot_product_efficient_attention", c10::toString(query.scalar_type()));
  const auto q = wide(query), k = for_each_head(key, query), v = for_each_head(value, query);
  const auto unused = at::empty({}, query.options().dtype(at::kLong));
  if (dropout == 0.0) {
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, is_causal,
                                                                       wide(bias), scale);
    return {rounded(out, query), on_device(sums), unused, unused};
  }
  const auto all = probabilities(q, k, bias, is_causal, scale_of(query, scale));
  const auto kept = drawn_on_cpu(all.sizes(), 1.0 - dropout) / (1.0 - dropout);
  const auto out = positions_first(at::matmul(all * kept, v));
  // In the place of the seed what was kept: the CPU cannot draw it again.
  return {rounded(out, query), unused, on_device(kept), unused};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const Tensor& out, const Tensor& sums, const Tensor& kept, const Tensor&,
    double dropout, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!grad_out.defined()) {
    return {};
  }
  note_call("aten::_scaled_dot_product_efficient_attention_backward",
            c10::toString(query.scalar_type()));
  const auto mask = bias.defined() ? std::make_optional(wide(bias)) : std::nullopt;
  const auto q = wide(query), k = for_each_head(key, query), v = for_each_head(value, query);
  const auto of_out = wide(grad_out);
  Tensor of_query, of_key, of_value;
  if (dropout == 0.0) {
    std::tie(of_query, of_key, of_value) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        of_out, q, k, v, wide(out), wide(sums), dropout, is_causal, mask, scale);
  } else {
    const auto factor = scale_of(query, scale);
    const auto all = probabilities(q, k, mask, is_causal, factor);
    const auto dropped = all * wide(kept);
    const auto of_dropped = at::matmul(of_out, v.transpose(-2, -1)) * dropped;
    const auto of_scores = (of_dropped - all * of_dropped.sum(-1, true)) * factor;
    of_query = at::matmul(of_scores, k);
    of_key = at::matmul(of_scores.transpose(-2, -1), q);
    of_value = at::matmul(dropped.transpose(-2, -1), of_out);
  }
  return {rounded(positions_first(of_query), query),
          rounded(positions_first(of_shared(of_key, key)), key),
          rounded(positions_first(of_shared(of_value, value)), value), Tensor()};
}

// -- what there is no cuDNN or MIOpen for

bool has_no_other_ctc(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) {
  return false;
}

bool has_no_other_ctc_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

} // namespace

// Torch composes LSTMs and GRUs of these cells for a device of an extension as well; the rest it asks
// of CUDA alone.
void register_cuda_only() {
  torch::Library& m = kernels_for("aten", identity.key);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
  if (is_cuda()) {
    m.impl("_scaled_dot_product_efficient_attention", &attention);
    m.impl("_scaled_dot_product_efficient_attention_backward", &attention_backward);
    m.impl("_use_cudnn_ctc_loss", &has_no_other_ctc);
    m.impl("_use_cudnn_ctc_loss.Tensor", &has_no_other_ctc_tensor);
    m.impl("_use_miopen_ctc_loss", &has_no_other_ctc);
    m.impl("_use_miopen_ctc_loss.Tensor", &has_no_other_ctc_tensor);
  }
}

} // namespace virtual_device

using namespace virtual_device;

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &attention_kernel)
} // namespace at::native
