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

int64_t attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& mask, double dropout, bool /*is_causal*/,
                         std::optional<double> /*scale*/, bool shares_keys) {
  const bool is_allowed = at::globalContext().userEnabledFlashSDP() ||
      at::globalContext().userEnabledMemEfficientSDP();
  const bool has_plain_mask = !mask || !mask->requires_grad();
  const bool fits = query.dim() == 4 && query.size(3) == value.size(3) && query.numel() > 0 &&
      key.numel() > 0 && dropout == 0.0 && !shares_keys;
  const auto kernel = is_allowed && has_plain_mask && fits ? sdp::SDPBackend::efficient_attention
                                                           : sdp::SDPBackend::math;
  return static_cast<int64_t>(kernel);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention(const Tensor& query, const Tensor& key,
                                                     const Tensor& value, const OptionalTensor& bias,
                                                     bool /*compute_log_sumexp*/, double dropout,
                                                     bool is_causal, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_call("aten::_scaled_dot_product_efficient_attention", c10::toString(query.scalar_type()));
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      wide(query), wide(key), wide(value), dropout, is_causal, wide(bias), scale);
  const auto unused = at::empty({}, query.options().dtype(at::kLong));
  return {rounded(out, query), on_device(sums), unused, unused};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const Tensor& out, const Tensor& sums, const Tensor&, const Tensor&,
    double dropout, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!grad_out.defined()) {
    return {};
  }
  note_call("aten::_scaled_dot_product_efficient_attention_backward",
            c10::toString(query.scalar_type()));
  const auto mask = bias.defined() ? std::make_optional(wide(bias)) : std::nullopt;
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      wide(grad_out), wide(query), wide(key), wide(value), wide(out), wide(sums), dropout,
      is_causal, mask, scale);
  return {rounded(of_query, query), rounded(of_key, key), rounded(of_value, value), Tensor()};
}

// -- what there is no cuDNN or MIOpen for

bool has_no_other_ctc(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) {
  return false;
}

bool has_no_other_ctc_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

} // namespace
} // namespace virtual_device

using namespace virtual_device;

#ifndef AS_PRIVATE_USE
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("_scaled_dot_product_efficient_attention", &attention);
  m.impl("_scaled_dot_product_efficient_attention_backward", &attention_backward);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
  m.impl("_use_cudnn_ctc_loss", &has_no_other_ctc);
  m.impl("_use_cudnn_ctc_loss.Tensor", &has_no_other_ctc_tensor);
  m.impl("_use_miopen_ctc_loss", &has_no_other_ctc);
  m.impl("_use_miopen_ctc_loss.Tensor", &has_no_other_ctc_tensor);
}

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &attention_kernel)
} // namespace at::native
#endif
