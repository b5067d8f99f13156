"""The virtual device does what CUDA does; expected values are the CPU's, and torch's documentation."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampbridge as amp
from ampbridge.errors import UnsupportedError
from ampbridge_rehearse import virtual_cuda
from ampbridge_rehearse.virtual_cuda import building

# -- torch finds it


def test_torch_finds_one_device() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (9, 0)
    assert "virtual" in torch.cuda.get_device_name()
    assert torch.cuda.is_bf16_supported()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_a_torch_that_is_built_for_cuda_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    monkeypatch.setattr(building, "torch_folder", lambda: tmp_path)
    with pytest.raises(UnsupportedError, match=r"(?s)built for CUDA.*Hint: .*whl/cpu"):
        building.built()


def test_there_is_no_second_device() -> None:
    for use in (
        lambda: torch.ones(2, device="cuda:1"),
        lambda: torch.ones(2).cuda(1),
        lambda: torch.ones(2, device="cuda").to("cuda:1"),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.device(1).__enter__(),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()
    torch.cuda.set_device(0)


def test_factories_and_copies() -> None:
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    assert x.is_cuda
    assert x.device == torch.device("cuda:0")
    assert torch.equal(x.cpu(), torch.arange(6.0).reshape(2, 3))
    assert torch.tensor([1.0, 2.0], device="cuda").to("cpu").tolist() == [1.0, 2.0]
    assert repr(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
    with pytest.raises(TypeError, match="cuda:0"):
        x.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2, 3)


def test_views_share_memory_and_in_place_ops_write_to_it() -> None:
    x = torch.zeros(4, 4, device="cuda")
    x[1:3, ::2].add_(1.0)
    x.t()[0, 3] = 5.0
    expected = torch.zeros(4, 4)
    expected[1:3, ::2].add_(1.0)
    expected.t()[0, 3] = 5.0
    assert torch.equal(x.cpu(), expected)
    low = torch.ones(3, device="cuda", dtype=torch.float16)
    low[1:].mul_(2.5)
    assert low.tolist() == [1.0, 2.5, 2.5]


def test_parameters_move_with_their_module_and_data_is_replaced() -> None:
    layer = nn.Linear(3, 2)
    parameter = layer.weight
    layer.to("cuda")
    assert layer.weight is parameter
    assert parameter.is_cuda
    parameter.data = torch.ones(2, 3, device="cuda")
    assert torch.equal(
        layer(torch.ones(1, 3, device="cuda")).cpu() - layer.bias.cpu(), torch.full((1, 2), 3.0)
    )
    clone = copy.deepcopy(layer)
    with torch.no_grad():
        clone.weight.zero_()
    assert parameter.sum().item() == 6.0


def test_saved_pickled_and_loaded_elsewhere() -> None:
    stream = io.BytesIO()
    torch.save({"x": torch.arange(3.0, device="cuda")}, stream)
    for place in ("cuda", "cpu"):
        stream.seek(0)
        loaded = torch.load(stream, map_location=place)["x"]
        assert loaded.device.type == place
        assert loaded.tolist() == [0.0, 1.0, 2.0]
    assert pickle.loads(pickle.dumps(torch.ones(2, device="cuda"))).is_cuda


def test_streams_and_events() -> None:
    stream = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        begin.record()
        x = torch.ones(3, device="cuda")
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0.0
    assert stream.query()


def test_memory_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.empty(1024, device="cuda")
    y = x + x
    del x
    assert torch.cuda.memory_allocated() - before == 4096
    assert torch.cuda.max_memory_allocated() - before == 8192
    del y
    assert torch.cuda.memory_allocated() == before


# -- random numbers


def test_random_numbers_are_the_cpus_and_each_device_has_its_own_sequence() -> None:
    torch.manual_seed(3)
    expected = torch.randn(5), torch.rand(5)
    torch.manual_seed(3)
    host = torch.random.get_rng_state()
    assert torch.equal(torch.randn(5, device="cuda").cpu(), expected[0])
    assert torch.equal(torch.rand(5, device="cuda").cpu(), expected[1])
    assert torch.equal(torch.random.get_rng_state(), host)
    state = torch.cuda.get_rng_state()
    first = torch.randn(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(3, device="cuda"), first)
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert torch.equal(torch.randn(5, device="cuda", generator=generator).cpu(), expected[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_drops_the_same_values_again(reentrant: bool) -> None:
    x = torch.ones(64, device="cuda", requires_grad=True)
    y = checkpoint(F.dropout, x, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


# -- 16-bit kernels


def in_float32(run: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Result and gradients computed on the CPU in float32, each rounded once."""
    low = inputs[0].dtype
    wide = [x.detach().float().requires_grad_() for x in inputs]
    result = run(*wide)
    gradients = torch.autograd.grad(result, wide, torch.ones_like(result))
    return result.to(low), [gradient.to(low) for gradient in gradients]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "run, shapes",
    [
        (torch.mm, [(5, 300), (300, 4)]),
        (torch.baddbmm, [(2, 5, 4), (2, 5, 300), (2, 300, 4)]),
        (F.conv2d, [(2, 8, 6, 6), (4, 8, 3, 3)]),
        (lambda x: F.layer_norm(x, (64,)), [(3, 64)]),
        (lambda x: F.gelu(x), [(64,)]),
        (lambda x: x.softmax(-1), [(3, 64)]),
        (lambda x: x.sum(-1), [(3, 300)]),
        (
            lambda x, w: F.embedding(torch.tensor([0, 1, 1], device=x.device), w) * x,
            [(3, 4), (2, 4)],
        ),
    ],
    ids=["mm", "baddbmm", "conv2d", "layer_norm", "gelu", "softmax", "sum", "embedding"],
)
def test_a_kernel_computes_in_float32_and_rounds_once(
    run: Any, shapes: list[tuple[int, ...]], dtype: torch.dtype
) -> None:
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    there = [x.to("cuda").requires_grad_() for x in inputs]
    result = run(*there)
    assert result.dtype is dtype
    gradients = torch.autograd.grad(result, there, torch.ones_like(result))
    if run is torch.mm or run is torch.baddbmm or run is F.conv2d:
        expected, of_inputs = in_float32(run, *inputs)
        assert torch.equal(result.cpu(), expected)
        assert all(torch.equal(g.cpu(), e) for g, e in zip(gradients, of_inputs, strict=True))
    else:  # softmax' gradient is made of its rounded result
        expected, _ = in_float32(run, *inputs)
        assert torch.equal(result.cpu(), expected)


def test_layer_norm_keeps_its_statistics_in_float32() -> None:
    x = torch.randn(3, 8, device="cuda", dtype=torch.float16)
    kernel = torch.ops.aten.native_layer_norm
    assert [y.dtype for y in kernel(x, [8], None, None, 1e-5)] == [
        torch.float16,
        torch.float32,
        torch.float32,
    ]


def test_a_convolution_and_an_lstm_as_on_the_cpu() -> None:
    for model, x in (
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            (2, 3, 8, 8),
        ),
        (nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), (2, 3, 4)),
        (nn.GRU(4, 5), (3, 2, 4)),
        (nn.TransformerEncoderLayer(8, 2, dropout=0.0, batch_first=True), (2, 3, 8)),
    ):
        inputs = torch.randn(x)
        there = copy.deepcopy(model).to("cuda")
        results = []
        for net, data in ((model, inputs), (there, inputs.to("cuda"))):
            out = net(data)
            (out[0] if isinstance(out, tuple) else out).square().sum().backward()
            results.append([p.grad for p in net.parameters()])
        for expected, gradient in zip(*results, strict=True):
            assert expected is not None
            assert gradient is not None
            torch.testing.assert_close(gradient.cpu(), expected)


def test_a_kernel_sizes_the_result_it_writes_to() -> None:
    """The loss is a number, which the kernel makes of a result as large as its arguments."""
    x, y = torch.randn(4, 3, dtype=torch.float16), torch.randn(4, 3)
    torch.testing.assert_close(F.mse_loss(x.cuda(), y.cuda()).cpu(), F.mse_loss(x.float(), y))


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Result and gradients."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, **options)
    return out, *torch.autograd.grad(out, leaves, torch.ones_like(out))


def test_attention_drops_in_its_one_kernel() -> None:
    """With keys of ones and values of an identity, the result is what was kept of 1 / 8."""
    q, k = torch.ones(1, 1, 8, 4, device="cuda"), torch.ones(1, 1, 8, 4, device="cuda")
    v = torch.eye(8, device="cuda").expand(1, 1, 8, 8).contiguous()[..., :4]
    virtual_cuda.note_calls()
    out, *_, of_v = attended(q.half(), k.half(), v.half(), dropout_p=0.5)
    assert {round(x, 4) for x in out.flatten().tolist()} == {0.0, 0.25}
    # each value's gradient is the sum of what its column kept: seen in the result for the first four
    assert torch.equal(of_v[0, 0, :4, 0], out[0, 0].sum(0))
    ran = {call.op: call.dtypes for call in virtual_cuda.calls()}
    assert ran["aten::_scaled_dot_product_efficient_attention"] == ("Half",)
    assert "aten::bmm" not in ran


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradients_of_attention_with_dropout(is_causal: bool) -> None:
    """Of a dropout so rare that it drops nothing, those of the CPU without any."""
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    bias = None if is_causal else torch.randn(2, 1, 5, 5)
    expected = attended(q, k, v, is_causal=is_causal, attn_mask=bias)
    there = None if bias is None else bias.cuda()
    results = attended(
        q.cuda(), k.cuda(), v.cuda(), is_causal=is_causal, attn_mask=there, dropout_p=1e-9
    )
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), right)


def test_heads_share_keys_in_the_one_kernel() -> None:
    q, k, v = (torch.randn(2, heads, 5, 8) for heads in (6, 2, 2))
    virtual_cuda.note_calls()
    results = attended(q.cuda().half(), k.cuda().half(), v.cuda().half(), enable_gqa=True)
    assert "aten::bmm" not in {call.op for call in virtual_cuda.calls()}
    low = [x.half().float() for x in (q, k, v)]
    for result, right in zip(results, attended(*low, enable_gqa=True), strict=True):
        torch.testing.assert_close(result.cpu(), right.half(), rtol=2e-3, atol=2e-3)


def test_sparse_gradients() -> None:
    table = nn.Embedding(5, 4, sparse=True, device="cuda")
    table(torch.tensor([1, 1, 3], device="cuda")).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    assert gradient.is_cuda
    assert gradient.coalesce().to_dense().sum(1).tolist() == [0.0, 8.0, 0.0, 4.0, 0.0]


SPARSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to_sparse": lambda x: x.to_sparse(),
    "t": lambda x: x.to_sparse().t(),
    "clone": lambda x: x.to_sparse().clone(),
    "add_": lambda x: x.to_sparse().add_(torch.ones_like(x).triu().to_sparse()),
    "mul_": lambda x: x.to_sparse().mul_(2.0),
    "zero_": lambda x: x.to_sparse().zero_(),
    "copy_": lambda x: torch.zeros_like(x).to_sparse().copy_(x.to_sparse()),
    "mm": lambda x: torch.sparse.mm(x.to_sparse(), x),
    "sum": lambda x: torch.sparse.sum(x.to_sparse(), 0),
    "softmax": lambda x: torch.sparse.softmax(x.to_sparse(), 1),
    "to": lambda x: x.to_sparse().cpu().to(x.device),
}


@pytest.mark.parametrize("run", SPARSE.values(), ids=SPARSE)
def test_sparse_tensors_as_on_the_cpu(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 0.5], [0.0, 0.0, 1.0]])
    expected, found = run(x), run(x.cuda())
    assert found.is_cuda
    assert (found.layout, found.dtype) == (expected.layout, expected.dtype)
    dense, right = (y.to_dense() if y.is_sparse else y for y in (found.cpu(), expected))
    assert torch.equal(dense, right)


def test_sparse_tensors_of_16_bits_are_written_to() -> None:
    low = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="cuda", dtype=torch.float16)
    total = low.to_sparse().add_(torch.eye(2, device="cuda").half().to_sparse())
    assert total.dtype is torch.float16
    assert total.to_dense().tolist() == [[1.0, 2.0], [3.0, 1.0]]


def test_the_gradient_of_a_product_with_a_sparse_matrix() -> None:
    graph = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    gradients = []
    for device in ("cpu", "cuda"):
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
        (graph.to(device).to_sparse() @ x).square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch imports its own
def test_forward_mode_derivatives_as_on_the_cpu() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    for function in (
        lambda x, w: torch.func.jvp(lambda y: F.linear(y, w, w[0]).tanh(), (x,), (x,))[1],
        lambda x, w: torch.func.jacfwd(lambda y: (y @ w).sum(0))(x),
        lambda x, w: torch.func.hessian(lambda y: (y @ w).sin().sum())(x[0]),
    ):
        torch.testing.assert_close(function(x.cuda(), w.cuda()).cpu(), function(x, w))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_derivatives_in_a_region() -> None:
    x, w = torch.randn(3, 4, device="cuda"), torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda", torch.float16):
        value, derivative = torch.func.jvp(lambda y: y @ w, (x,), (x,))
    assert derivative.dtype is torch.float16
    assert torch.equal(value, derivative)


ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
PADDING = torch.tensor([[False, False, True], [False, False, False]])


def on_fast_path(x: torch.Tensor) -> torch.Tensor:
    torch.backends.mha.set_fastpath_enabled(True)
    try:
        return encoded(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(False)


def encoded(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor
    with torch.no_grad():
        y = copy.deepcopy(ENCODER).to(x.device)(
            x.expand(2, 3, 8), src_key_padding_mask=PADDING.to(x.device)
        )
    return y


REFUSED: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "TransformerEncoder": ("set_fastpath_enabled", on_fast_path),
    "nested_tensor": ("jagged", lambda x: torch.nested.nested_tensor([x, x])),
    "as_nested_tensor": ("jagged", lambda x: torch.nested.as_nested_tensor([x, x])),
    "nested tensor of the CPU": ("jagged", lambda x: torch.nested.nested_tensor([x.cpu()]).cuda()),
    "to_sparse_csr": ("to_sparse", lambda x: x[None].to_sparse_csr()),
    "sparse_csr_tensor": (
        "to_sparse",
        lambda x: torch.sparse_csr_tensor(
            torch.tensor([0, 1], device=x.device), torch.tensor([0], device=x.device), x[:1], (1, 1)
        ),
    ),
    "to_sparse to_sparse_csc": ("to_sparse", lambda x: x[None].to_sparse().to_sparse_csc()),
    "CSR of the CPU": ("to_sparse", lambda x: x[None].cpu().to_sparse_csr().cuda()),
    "quantize": (
        "without quantization",
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint, use", REFUSED.values(), ids=REFUSED)
def test_layouts_that_it_lacks_are_refused_with_a_hint(
    hint: str, use: Callable[[torch.Tensor], Any]
) -> None:
    with pytest.raises(UnsupportedError, match=rf"(?s)has no .*\nHint: .*{hint}"):
        use(torch.ones(8, device="cuda"))


def test_a_transformer_is_evaluated_with_a_padding_mask() -> None:
    x = torch.linspace(0.0, 1.0, 8)
    torch.testing.assert_close(encoded(x.cuda()).cpu(), encoded(x))


def test_jagged_tensors() -> None:
    jagged = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged, device="cuda"
    )
    assert (jagged * 2).to_padded_tensor(0.0).sum().item() == 18.0


def test_what_scripts_print_of_torch_and_the_device() -> None:
    assert "virtual CUDA device" in torch.__config__.show()
    kept = torch.ones(1000, device="cuda")
    assert "CUDA memory summary" in torch.cuda.memory_summary()
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] >= kept.nbytes
    torch.cuda.set_per_process_memory_fraction(0.5)
    with torch.cuda.nvtx.range("a step"):
        torch.cuda.nvtx.mark("half of it")


def test_autocast_is_cudas() -> None:
    x = torch.randn(4, 4, device="cuda")
    virtual_cuda.note_calls()
    with torch.autocast("cuda", torch.float16):
        y = x @ x
        z = y.softmax(-1)
    assert (y.dtype, z.dtype) == (torch.float16, torch.float32)
    ran = {call.op: call.dtypes for call in virtual_cuda.calls()}
    assert set(ran["aten::mm"]) == {"Half"}


# -- waiting


def waiting(run: Any) -> list[tuple[str, str]]:
    virtual_cuda.forget()
    run()
    return [(wait.kind, wait.op) for wait in virtual_cuda.waits() for _ in range(wait.count)]


def test_the_time_of_kernels_is_theirs_alone() -> None:
    x = torch.ones(512, 512, device="cuda")
    x @ x
    virtual_cuda.forget()
    assert virtual_cuda.kernel_seconds() == 0.0
    assert x.shape == (512, 512)
    assert virtual_cuda.kernel_seconds() == 0.0
    begin = time.perf_counter()
    for _ in range(10):
        x @ x
    took = time.perf_counter() - begin
    assert 0.0 < virtual_cuda.kernel_seconds() <= took


def test_each_wait_is_counted() -> None:
    x = torch.ones(4, device="cuda")
    mask = x > 0
    assert waiting(lambda: x + 1) == []
    assert waiting(lambda: x.sum().item()) == [("read", "aten::_local_scalar_dense")]
    assert waiting(lambda: x.cpu()) == [("read", "aten::copy_")]
    assert waiting(lambda: x.to("cpu", non_blocking=True)) == []
    assert waiting(lambda: torch.tensor([1.0], device="cuda")) == [("write", "aten::copy_")]
    assert waiting(lambda: torch.ones(4).pin_memory().to("cuda", non_blocking=True)) == []
    assert waiting(lambda: x.nonzero()) == [("read", "aten::nonzero")]
    assert waiting(lambda: x[mask]) == [("read", "aten::nonzero")]
    assert waiting(torch.cuda.synchronize) == [("synchronize", "synchronize")]


def test_a_wait_is_told_with_the_line_that_caused_it() -> None:
    told: list[tuple[str, str, str]] = []

    def tell(kind: str, op: str) -> None:
        told.append((kind, op, traceback.extract_stack()[-3].line or ""))

    virtual_cuda.on_wait(tell)
    loss = torch.ones(3, device="cuda").sum()
    loss.item()
    assert told == [("read", "aten::_local_scalar_dense", "loss.item()")]


def test_the_sync_debug_mode() -> None:
    x = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert torch.cuda.get_sync_debug_mode() == 2
        x + 1
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x.sum().item()
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
            x.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_torchs_own_scaler_waits_once_and_a_fused_step_never() -> None:
    """https://pytorch.org/docs: a fused optimizer takes the decision to skip on the device."""
    for fused, reads in ((False, 1), (True, 0)):
        layer = nn.Linear(4, 4, device="cuda")
        optimizer = torch.optim.AdamW(layer.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
        x = torch.ones(2, 4, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", torch.float16):
                loss = layer(x).square().mean()  # noqa: B023
            scaler.scale(loss).backward()  # noqa: B023
            scaler.step(optimizer)  # noqa: B023
            scaler.update()  # noqa: B023

        step()
        assert len(waiting(step)) == reads


def test_every_thread_has_the_device() -> None:
    results: list[torch.Tensor] = []

    def work() -> None:
        x = torch.ones(3, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad is not None
        results.append(x.grad.cpu())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [x.tolist() for x in results] == [[2.0] * 3] * 4


def test_compiled_functions_are_traced_and_run_on_it() -> None:
    layer = nn.Linear(3, 3, device="cuda")
    x = torch.ones(2, 3, device="cuda")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("options", [{"dropout_p": 0.5}, {"is_causal": True}, {"enable_gqa": True}])
def test_compiled_attention_has_the_layout_that_was_traced(options: dict[str, Any]) -> None:
    heads = 2 if "enable_gqa" in options else 4

    def attend(x: torch.Tensor) -> torch.Tensor:
        q = x.view(2, 5, 4, 8).transpose(1, 2)
        k = x[..., : heads * 8].view(2, 5, heads, 8).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, k, **options)
        return y.transpose(1, 2).contiguous().view(2, 5, 32)

    x = torch.randn(2, 5, 32, device="cuda", dtype=torch.float16, requires_grad=True)
    attended = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)(x)
    attended.float().square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_a_step_follows_its_model_to_another_device() -> None:
    """CUDA's autocast computes a softmax in float32; on a CPU the lists have to see to it."""
    layer, seen = nn.Linear(4, 4), []

    def loss_fn(model: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        product = x @ model.weight
        seen.append((product.device.type, product.dtype, product.softmax(-1).dtype))
        return product.float().square().mean()

    policy = amp.Policy("O1", "bfloat16", execution="native")
    step = amp.train_step(loss_fn, layer, torch.optim.SGD(layer.parameters(), 0.1), policy=policy)
    devices = ("cuda", "cpu", "cuda")
    for device in devices:
        layer.to(device)
        step(torch.ones(2, 4, device=device))
    assert seen == [(device, torch.bfloat16, torch.float32) for device in devices]


def test_data_parallel_is_of_one_device() -> None:
    layer = nn.Linear(3, 2).cuda()
    x = torch.ones(4, 3)
    assert torch.equal(nn.DataParallel(layer)(x), layer(x.cuda()))
    nn.DataParallel(layer)(x.cuda()).sum().backward()
    assert torch.equal(layer.bias.grad.cpu(), torch.full((2,), 4.0))  # type: ignore[union-attr]
