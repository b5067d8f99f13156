"""In which dtype each op runs, seen from beneath and from outside; as ``observe`` and ``explain`` tell.

From beneath: ``Spy`` arrays go through autograd down to NumPy and write down what NumPy is given.
From outside: results are compared with plain NumPy in float64, on inputs that were rounded (by
ml_dtypes and NumPy) and on inputs that were not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import autograd.numpy as anp
import ml_dtypes
import numpy as np
import pytest
from autograd.extend import VJPNode, VSpace, vspace
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.tracer import getval, new_box

import ampbridge as amp
from ampbridge import Policy
from ampbridge.policies import op_table
from ampbridge.reports.explain import ExplanationTable
from ampbridge_lens.census import Calls
from ampbridge_numpy import functional, nn
from ampbridge_numpy.autocast import casting
from ampbridge_numpy.backend import NumpyBackend

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
LOW = ("float16", "bfloat16")


class Spy(np.ndarray):
    """An array that notes with which floating values NumPy's functions are called on it."""

    seen: list[tuple[str, list[np.ndarray]]]

    def __array_finalize__(self, other: Any) -> None:
        self.seen = getattr(other, "seen", [])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self.seen.append((ufunc.__name__, [bare(x) for x in inputs if is_floating(x)]))
        result = getattr(ufunc, method)(*stripped(inputs), **stripped(kwargs))
        return self.like(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        leaves: list[Any] = []
        collect(args, leaves)
        self.seen.append((function.__name__, [bare(x) for x in leaves if is_floating(x)]))
        result = function(*stripped(args), **stripped(kwargs))
        return type(result)(map(self.like, result)) if type(result) is list else self.like(result)

    def view(self, kind: Any) -> Any:
        if is_floating(self) and isinstance(kind, str):  # its bits, which an op computes with
            self.seen.append(("view", [bare(self)]))
        return super().view(kind)

    def __getitem__(self, index: Any) -> Any:
        self.seen.append(("getitem", [bare(self)]))
        return self.like(bare(self)[index])

    def like(self, result: Any) -> Any:
        if type(result) is not np.ndarray:
            return result
        spy = result.view(Spy)
        spy.seen = self.seen
        return spy


ArrayBox.register(Spy)
VSpace.register(Spy, lambda value: vspace(bare(value)))


def bare(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Spy) else x


def is_floating(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype in map(np.dtype, (*DTYPES.values(), np.float64))


def collect(tree: Any, leaves: list[Any]) -> None:
    for x in tree:
        collect(x, leaves) if isinstance(x, (list, tuple)) else leaves.append(x)


def stripped(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: stripped(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(stripped, tree))
    return bare(tree)


# -- the ops: how they are called, the same in plain NumPy, and inputs


class Case(NamedTuple):
    call: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    first_decides: bool = False  # normalizations: where they promote, their weights follow
    differentiable: bool = True  # for autograd


def fine(*shape: int, low: float = 0.3, high: float = 0.9, seed: int = 0) -> np.ndarray:
    """Numbers that neither low dtype can hold."""
    values = np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)
    return np.nextafter(values.astype(np.float16).astype(np.float32) + 2.0**-13, np.float32(1))


A, B, C = fine(3, 4), fine(4, 5, seed=1), fine(3, 4, seed=2)
SQUARE = fine(4, 4, seed=3) + 2 * np.eye(4, dtype=np.float32)
POSITIVE = (SQUARE @ SQUARE.T).astype(np.float32)
VECTOR = fine(4, seed=4)
IMAGE, KERNEL = fine(2, 3, 5, 5), fine(4, 3, 2, 2, seed=5)
HEADS = tuple(fine(2, 3, 4, seed=s) for s in (6, 7, 8))
LABELS = np.array([0, 3, 1])
INDICES = np.array([[0, 2], [1, 1]])


def plain(name: str, *inputs: np.ndarray, **options: Any) -> Case:
    """An op that NumPy has under this name."""

    def call(*arrays: Any) -> Any:
        return attribute(anp, name)(*arrays, **options)

    def reference(*arrays: Any) -> Any:
        return attribute(np, name)(*arrays, **options)

    return Case(call, reference, inputs)


def both(name: str, use: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``use`` of autograd's function of this name, looked up when called, and of NumPy's."""
    return (
        lambda *xs: use(attribute(anp, name), *xs),
        lambda *xs: use(attribute(np, name), *xs),
    )


def attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def einsum(subscripts: str, *inputs: np.ndarray) -> Case:
    return Case(
        lambda *xs: anp.einsum(subscripts, *xs), lambda *xs: np.einsum(subscripts, *xs), inputs
    )


def listed(name: str) -> Case:
    """An op over a list of arrays."""
    return Case(
        lambda *xs: getattr(anp, name)(list(xs)), lambda *xs: getattr(np, name)(list(xs)), (A, C)
    )


def windows(x: np.ndarray, size: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf)(x)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return softmax(q @ k.swapaxes(-1, -2) / 2.0) @ v  # sqrt(4) = 2


def normal(x: np.ndarray, axes: Any) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def of_channels(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 1, 1)


CASES: dict[str, Case] = {
    # matrix products
    "matmul": plain("matmul", A, B),
    "mm": Case(lambda a, b: a @ b, np.matmul, (A, B)),
    "bmm": plain("matmul", HEADS[0], HEADS[1].swapaxes(1, 2).copy()),
    "dot": plain("dot", VECTOR, VECTOR),
    "outer": plain("outer", VECTOR, VECTOR[::-1].copy()),
    "inner": plain("inner", VECTOR, VECTOR),
    "kron": plain("kron", A, B),
    "tensordot": plain("tensordot", VECTOR, VECTOR, axes=1),
    "einsum": einsum("ij,jk->ik", A, B),
    "linear": Case(nn.linear, lambda x, w, b: x @ w + b, (A, B, fine(5))),
    "conv2d": Case(
        nn.conv2d, lambda x, w: np.einsum("ncijhw,ochw->noij", windows(x, 2), w), (IMAGE, KERNEL)
    ),
    "scaled_dot_product_attention": Case(nn.scaled_dot_product_attention, attention, HEADS),
    # normalization
    "layer_norm": Case(
        nn.layer_norm, lambda x, w, b: normal(x, -1) * w + b, (A, VECTOR, VECTOR), first_decides=True
    ),
    "batch_norm": Case(
        nn.batch_norm,
        lambda x, w, b: normal(x, (0, 2, 3)) * of_channels(w) + of_channels(b),
        (IMAGE, fine(3), fine(3, seed=1)),
        first_decides=True,
    ),
    # activations, softmax, losses
    "softmax": Case(nn.softmax, softmax, (A,)),
    "log_softmax": Case(nn.log_softmax, lambda x: np.log(softmax(x)), (A,)),
    "relu": Case(nn.relu, lambda x: np.maximum(x, 0), (A,)),
    "gelu": Case(nn.gelu, lambda x: 0.5 * x * (1 + erf(x / 2**0.5)), (A,)),
    "silu": Case(nn.silu, lambda x: x / (1 + np.exp(-x)), (A,)),
    "dropout": Case(
        lambda x: nn.dropout(x, 0.25, np.random.default_rng(0)),
        lambda x: x * (np.random.default_rng(0).random(x.shape, np.float32) >= 0.25) / 0.75,
        (A,),
    ),
    "sigmoid": Case(nn.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (A,)),
    "tanh": plain("tanh", A),
    "cross": plain("cross", A[:, :3].copy(), C[:, :3].copy()),
    "cross_entropy": Case(
        lambda x: nn.cross_entropy(x, LABELS),
        lambda x: -np.log(softmax(x))[np.arange(3), LABELS].mean(),
        (A,),
    ),
    "mse_loss": Case(nn.mse_loss, lambda a, b: ((a - b) ** 2).mean(), (A, C)),
    # pooling, lookups, shapes
    "max_pool2d": Case(lambda x: nn.max_pool2d(x, 2, 1), lambda x: windows(x, 2).max((4, 5)), (IMAGE,)),
    "avg_pool2d": Case(lambda x: nn.avg_pool2d(x, 2, 1), lambda x: windows(x, 2).mean((4, 5)), (IMAGE,)),
    "embedding": Case(lambda w: nn.embedding(INDICES, w), lambda w: w[INDICES], (A,)),
    "flatten": Case(nn.flatten, lambda x: x.reshape(2, -1), (IMAGE,)),
    "slice": Case(lambda x: x[1:, :2], lambda x: x[1:, :2], (A,)),
    "reshape": Case(lambda x: anp.reshape(x, (2, 6)), lambda x: x.reshape(2, 6), (A,)),
    "transpose": plain("transpose", A),
    "squeeze": plain("squeeze", A[None]),
    "unsqueeze": plain("expand_dims", A, axis=0),
    "split": Case(lambda x: anp.split(x, 2, 1)[1], lambda x: np.split(x, 2, 1)[1], (A,)),
    "concat": listed("concatenate"),
    "stack": listed("stack"),
    "roll": plain("roll", A, shift=1),
    "tile": plain("tile", A, reps=2),
    "broadcast_to": Case(
        lambda x: anp.broadcast_to(x, (3, 4)), lambda x: np.broadcast_to(x, (3, 4)), (A[:1],)
    ),
    "pad": plain("pad", A, pad_width=1, mode="constant"),
    "tril": plain("tril", A),
    "triu": plain("triu", A),
    "diag": plain("diag", SQUARE),
    "where": Case(
        lambda a, b: anp.where(A > 0.5, a, b), lambda a, b: np.where(A > 0.5, a, b), (A, C)
    ),
    "sort": plain("sort", VECTOR),
    # reductions and scans
    "sum": plain("sum", A, axis=0),
    "mean": plain("mean", A, axis=0),
    "prod": plain("prod", A, axis=0),
    "amax": plain("max", A, axis=0),
    "amin": plain("amin", A, axis=0),
    "var": plain("var", A, axis=0),
    "std": plain("std", A, axis=0),
    "norm": plain("linalg.norm", A),
    "trace": plain("trace", SQUARE),
    "cumsum": plain("cumsum", A, axis=0),
    # elementwise
    **{
        name: plain(numpy_name, A)
        for name, numpy_name in {
            "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
            "log10": "log10", "log1p": "log1p", "square": "square", "sqrt": "sqrt",
            "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin",
            "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "asinh": "arcsinh",
            "atanh": "arctanh", "sinc": "sinc", "abs": "absolute", "neg": "negative",
        }.items()
    },
    "acosh": plain("arccosh", A + 1),
    "clamp": plain("clip", A, a_min=0.4, a_max=0.8),
    "nan_to_num": plain("nan_to_num", A),
    **{
        name: plain(name, A, C)
        for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "logaddexp")
    },
    "pow": Case(lambda x: x**2.5, lambda x: x**2.5, (A,)),
    "atan2": plain("arctan2", A, C),
    "remainder": plain("mod", A * 3, C),
    # linear algebra
    "inverse": plain("linalg.inv", SQUARE),
    "svd": Case(
        lambda x: anp.linalg.svd(x, full_matrices=False)[1], lambda x: np.linalg.svd(x)[1], (SQUARE,)
    ),
    "eigh": Case(lambda x: anp.linalg.eigh(x)[0], lambda x: np.linalg.eigh(x)[0], (POSITIVE,)),
    "slogdet": Case(lambda x: anp.linalg.slogdet(x)[1], lambda x: np.linalg.slogdet(x)[1], (SQUARE,)),
    "solve": plain("linalg.solve", SQUARE, fine(4, 2)),
    "det": plain("linalg.det", SQUARE),
    "cholesky": plain("linalg.cholesky", POSITIVE),
    # not differentiable in autograd
    **{
        op: Case(call, reference, inputs, differentiable=False)
        for op, call, reference, inputs in [
            ("multi_dot", *both("linalg.multi_dot", lambda f, *xs: f(list(xs))), (A, B, B.T.copy())),
            ("masked_select", *both("extract", lambda f, x: f(A > 0.5, x)), (A,)),
            ("unbind", *both("unstack", lambda f, x: f(x)[1]), (A,)),
            ("qr", *both("linalg.qr", lambda f, x: f(x)[1]), (SQUARE,)),
            ("lstsq", *both("linalg.lstsq", lambda f, a, b: f(a, b)[0]), (SQUARE, VECTOR)),
            ("tensorinv", *both("linalg.tensorinv", lambda f, x: f(x, ind=1)), (SQUARE,)),
            ("tensorsolve", *both("linalg.tensorsolve", lambda f, a, b: f(a, b)), (SQUARE, VECTOR)),
        ]
    },
    **{
        op: plain(name, *inputs, **options)._replace(differentiable=False)
        for op, name, inputs, options in [
            ("mv", "matvec", (A, VECTOR), {}),
            ("vdot", "vdot", (VECTOR, VECTOR[::-1].copy()), {}),
            ("vecdot", "vecdot", (A, C), {}),
            ("matrix_power", "linalg.matrix_power", (SQUARE,), {"n": 3}),
            ("matrix_norm", "linalg.matrix_norm", (SQUARE,), {}),
            ("vector_norm", "linalg.vector_norm", (VECTOR,), {}),
            ("eigvalsh", "linalg.eigvalsh", (POSITIVE,), {}),
            ("svdvals", "linalg.svdvals", (SQUARE,), {}),
            ("pinverse", "linalg.pinv", (SQUARE,), {}),
            ("cond", "linalg.cond", (SQUARE,), {}),
            ("median", "median", (A,), {"axis": 0}),
            ("quantile", "quantile", (A,), {"q": 0.3}),
            ("nanquantile", "nanquantile", (A,), {"q": 0.3}),
            ("nansum", "nansum", (A,), {}),
            ("nanmean", "nanmean", (A,), {}),
            ("average", "average", (A,), {"axis": 0}),
            ("cumprod", "cumprod", (A,), {"axis": 0}),
            ("gather", "take", (A,), {"indices": [2, 0], "axis": 0}),
            ("index_select", "take", (A,), {"indices": [2, 0], "axis": 0}),
            ("take_along_axis", "take_along_axis", (A,), {"indices": LABELS[:, None], "axis": 1}),
            ("flip", "flip", (A,), {}),
            ("identity", "copy", (A,), {}),
        ]
    },
}  # fmt: skip


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(DTYPES[dtype]).astype(np.float32)


@cache
def references(op: str, low: str) -> dict[str, np.ndarray]:
    """What the op's arithmetic makes in each dtype: of rounded inputs, and rounded, or neither."""
    case = CASES[op]
    exact = np.asarray(case.reference(*(x.astype(np.float64) for x in case.inputs)))
    inputs = [rounded(x, low).astype(np.float64) for x in case.inputs]
    of_rounded = rounded(np.asarray(case.reference(*inputs)), low)
    assert np.abs(exact - of_rounded).max() > 1e-6, "the inputs tell nothing"
    return {"float32": exact, low: of_rounded}


def closest(op: str, result: np.ndarray, low: str) -> str:
    """The dtype whose arithmetic ``result`` shows."""
    found = references(op, low)
    error = {k: np.abs(result.astype(np.float64) - v).max() for k, v in found.items()}
    return min(error, key=error.__getitem__)


def given_to_numpy(seen: list[tuple[str, list[np.ndarray]]], low: str) -> str:
    """The dtype that holds all floating values which the first call of NumPy's was given."""
    _, arrays = next(call for call in seen if call[1])
    exact = all((rounded(x, low) == x.astype(np.float32)).all() for x in arrays)
    return low if exact else "float32"


def traced(case: Case, arrays: list[Any]) -> list[Any]:
    """As autograd hands them to the op in a training step."""
    if not case.differentiable:
        return arrays
    return [new_box(x, 1, VJPNode.new_root()) for x in arrays]


def run(case: Case, policy: Policy, inputs: list[np.ndarray]) -> tuple[np.ndarray, list[Any]]:
    """The op on Spy arrays, traced; and what NumPy was given."""
    seen: list[Any] = []
    spies = [x.view(Spy) for x in inputs]
    for spy in spies:
        spy.seen = seen
    with NumpyBackend().autocast(policy):
        result = case.call(*traced(case, spies))
    return np.asarray(bare(getval(result))), seen


# -- every witness, asked about each op

EXPLAINED = (
    Policy("O1", "bfloat16"),
    Policy("O1", "float16", lists="paddle"),
    Policy("O1", "bfloat16", lists="tensorflow"),
    Policy("O1", "float16", deny=["matmul", "relu"], allow=["exp"]),
    Policy("O2", "bfloat16"),
    Policy("O0"),
)
# By operators, which plain arrays keep to themselves: only traced ones are seen.
BY_OPERATOR = {"mm", "pow"}


@cache
def tables() -> list[ExplanationTable]:
    return [amp.explain(policy, "numpy") for policy in EXPLAINED]


@pytest.mark.parametrize("op", CASES)
def test_an_op_runs_in_the_dtype_of_its_category_by_every_witness(op: str) -> None:
    for low in LOW:
        for lists in ({}, {"deny": [op]}, {"allow": [op]}):
            policy = Policy("O1", low, **lists)
            check_what_runs(op, policy)
            check_what_is_observed(op, policy)
    check_O0_inside_O1(op)
    for table in tables():
        check_what_is_explained(op, table)


def inputs_of(op: str, *dtypes: str) -> list[np.ndarray]:
    """The last of ``dtypes`` is that of all further inputs."""
    inputs = CASES[op].inputs
    names = [*dtypes, *[dtypes[-1]] * len(inputs)]
    return [x.astype(DTYPES[name]) for x, name in zip(inputs, names, strict=False)]


def runs(op: str, policy: Policy) -> list[tuple[tuple[str, ...], str]]:
    """In which dtypes inputs arrive, and in which the result has to leave then."""
    case, low, category = CASES[op], policy.dtype, policy.category(op)
    if category != "promote":
        dtype = low if category == "allow" else "float32"
        return [(("float32",), dtype), ((low,), dtype)]
    alone = [(("float32",), "float32"), ((low,), low)]
    mixed = [((low, "float32"), low if case.first_decides else "float32")]
    return [*alone, *(mixed if len(case.inputs) > 1 else [])]


def check_what_runs(op: str, policy: Policy) -> None:
    """By the result's dtype; where float32 arrives, also by its values, and by what NumPy was given."""
    low = policy.dtype
    for arrives, expected in runs(op, policy):
        result, seen = run(CASES[op], policy, inputs_of(op, *arrives))
        where = (policy, arrives)
        assert result.dtype == DTYPES[expected], where
        if arrives == ("float32",):
            assert closest(op, result, low) == expected, where
            assert given_to_numpy(seen, low) == expected, where


def check_O0_inside_O1(op: str) -> None:
    with NumpyBackend().autocast(Policy("O1")):
        result, _ = run(CASES[op], Policy("O0"), inputs_of(op, "float16"))
    assert result.dtype == np.float32, "O0 inside O1, where float16 arrives"


def check_what_is_observed(op: str, policy: Policy) -> None:
    """One call, under the op's name or that of its spelling's owner; indexing comes after it."""
    case, calls, where = CASES[op], Calls(), (policy, "observed")

    def observed(*arrays: Any) -> Any:
        with NumpyBackend().observe(nn.Module(), calls, gradients=False):
            return case.call(*arrays)

    _, seen = run(case._replace(call=observed), policy, inputs_of(op, "float32"))
    call, *others = calls.seen
    assert {other.op for other in others} <= {"slice"}, where
    (kernel,) = call.kernels
    assert op in (call.op, *op_table.native_names("numpy").get(kernel.name, ())), where
    given = given_to_numpy(seen, policy.dtype)
    assert (call.dtype, kernel.dtype) == (given, given), where


def check_what_is_explained(op: str, table: ExplanationTable) -> None:
    """By the dtypes of results, for NumPy stores what it has rounded; on plain arrays."""
    case, row = CASES[op], table.op(op)
    assert row.by != "absent", (table.policy, row)
    for arrives in ("float32", table.policy.dtype):
        arrays = inputs_of(op, arrives)
        with amp.autocast(table.policy, backend="numpy"):
            result = case.call(*(traced(case, arrays) if op in BY_OPERATOR else arrays))
        wanted = arrives if row.dtype == "inputs'" else row.dtype
        assert getval(result).dtype == DTYPES[wanted], (table.policy, arrives, row)


# -- none is skipped silently


def test_every_canonical_op_is_either_run_here_or_listed() -> None:
    listed = [*CASES, *COMPOSITE, *NOT_FLOATING, *WHOLE_NUMBERS, *LACKING]
    assert sorted(listed) == sorted(op_table.ops())


def test_lacking_ops_exist_under_no_name() -> None:
    names = op_table.native_names("numpy")
    found = {op for candidates in names.values() for op in candidates}
    assert [op for op in LACKING if op in found or hasattr(functional, op)] == []


@pytest.mark.parametrize("op", ["sign", "floor", "ceil", "round", "trunc"])
def test_ops_that_give_whole_numbers_keep_the_dtype(op: str) -> None:
    with NumpyBackend().autocast(Policy("O1")):
        assert getattr(anp, op)(A.astype(np.float16)).dtype == np.float16
    with NumpyBackend().autocast(Policy("O1", deny=[op])):
        assert getattr(anp, op)(A.astype(np.float16)).dtype == np.float32


# A layer whose parts follow their own rules: tests/numpy/test_regions.py.
COMPOSITE = {"multi_head_attention"}

# Results are integers, booleans, complex, or of the dtype that the caller writes.
NOT_FLOATING = {
    "all", "any", "argmax", "argmin", "argsort", "bincount", "cast", "count_nonzero", "eig", "eigvals",
    "equal", "fft_fft", "fft_fft2", "fft_fftn", "fft_hfft", "fft_ifft", "fft_ifft2", "fft_ifftn",
    "fft_ihfft", "fft_irfft", "fft_irfft2", "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftn", "full",
    "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and",
    "logical_not", "matrix_rank", "not_equal", "ones_like", "zeros_like",
}  # fmt: skip

# Rounded or not, the result is the same.
WHOLE_NUMBERS = {"sign", "floor", "ceil", "round", "trunc", "floor_divide"}

# NumPy has no such op, and ampbridge_numpy.nn does not add it.
LACKING = {
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "add_n", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "affine_grid",
    "avg_pool1d", "avg_pool3d", "baddbmm", "bias_add", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cdist", "celu", "check_numerics", "cholesky_inverse",
    "cholesky_solve", "col2im", "conv1d", "conv3d", "conv_backward", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss",
    "cosine_similarity", "ctc_loss", "cummax", "deformable_conv2d", "depthwise_conv2d",
    "digamma", "dist", "elu", "embedding_bag", "erf", "erfc", "erfinv",
    "fake_quantize", "flash_attention", "fractional_max_pool2d", "fractional_max_pool3d",
    "frobenius_norm", "fused_feedforward", "fused_linear", "fused_softmax_mask", "gather_nd",
    "gaussian_nll_loss", "gelu_tanh", "glu", "grid_sample", "group_norm", "gru", "gru_cell",
    "gumbel_softmax", "hard_shrink", "hard_sigmoid", "hard_swish", "hard_tanh",
    "hinge_embedding_loss", "hinge_loss", "householder_product", "hsigmoid_loss", "huber_loss",
    "im2col", "index_add", "index_copy", "index_put", "instance_norm", "interpolate_bicubic",
    "interpolate_bilinear", "interpolate_linear", "interpolate_nearest",
    "interpolate_trilinear", "istft", "kl_div", "l1_loss", "l2_loss", "leaky_relu", "lerp",
    "lgamma", "local_response_norm", "log_loss", "log_sigmoid", "logcumsumexp", "logit",
    "logsumexp", "lp_pool2d", "lstm", "lstm_cell", "lu", "lu_solve", "margin_ranking_loss",
    "masked_fill", "matrix_exp", "max_pool1d", "max_pool3d", "max_unpool2d", "max_unpool3d",
    "maxout", "mish", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "multinomial", "nll_loss", "normalize", "nuclear_norm",
    "one_hot", "ormqr", "pairwise_distance", "parallel_cross_entropy", "pdist", "pixel_shuffle",
    "pixel_unshuffle", "poisson_nll_loss", "polar", "prelu", "reflection_pad", "relu6",
    "renorm", "replication_pad", "rms_norm", "rnn", "rnn_cell", "rnnt_loss", "rotary_embedding",
    "rrelu", "rsqrt", "scatter", "scatter_add", "scatter_nd", "segment_max", "segment_sum",
    "selu", "separable_conv2d", "sigmoid_focal_loss", "smooth_l1_loss", "soft_margin_loss",
    "soft_shrink", "softmin", "softplus", "softsign", "sparse_matmul", "squared_difference",
    "stft", "stop_gradient", "swiglu", "sync_batch_norm", "tanh_shrink", "threshold", "topk",
    "triangular_solve", "triplet_margin_loss", "view_as_complex", "weight_norm", "xlogy",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scalars_count_where_there_is_nothing_else(dtype: str) -> None:
    """As in torch: the sum of two low numbers is low, and of one with float32 is not."""
    low, wide = np.ones((), casting.DTYPES[dtype]), np.ones((), np.float32)
    with amp.autocast("O1:float16", backend="numpy"):
        assert anp.add(low, low).dtype == low.dtype
        assert anp.add(low, wide).dtype == np.float32
