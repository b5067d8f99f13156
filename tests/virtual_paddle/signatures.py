"""The C++ types of Paddle's kernels, read from the headers in its wheel; sources that lift them.

A kernel's declaration is often made by a macro, so that headers are read after the preprocessor. They
include some of Eigen's, which the wheel lacks; empty files in their place are enough to preprocess.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_PADDLE = importlib.util.find_spec("paddle")
assert _PADDLE is not None
assert _PADDLE.origin is not None
INCLUDE = Path(_PADDLE.origin).parent / "include"
INCLUDES = [f"-I{INCLUDE}", f"-I{INCLUDE / 'third_party'}"]

# Families that are left out, by words in a kernel's name: their tensors are not dense, mixed precision
# does not meet them, or they need what the device has not (other ranks, a file, hardware of their own).
_LEFT_OUT = re.compile(
    "|".join(
        [
            *(
                "_coo",
                "_csr",
                "_sr$",
                "array",
                "sequence",
                "lod_reset",
                "string",
                "share_",
            ),  # no dense tensor
            *("fused", "fusion", "quant", "_onednn", "xpu", "shadow", "transfer_layout"),
            *(
                "^c_",
                "^dist_concat",
                "^distribute",
                "^global_",
                "send",
                "recv",
                "reduce_scatter",
                "barrier",
            ),
            *("all_gather", "all_to_all", "all_reduce", "broadcast$", "partial", "moe", "routing"),
            *("yolo", "box", "rcnn", "fpn", "proposal", "nms", "anchor", "deformable", "psroi"),
            *("graph", "tdm", "beam", "viterbi", "edit_dist", "ctc", "warp", "crf", "chunk_eval"),
            *("feed", "fetch", "print", "save", "load", "read_file", "decode_jpeg", "memcpy"),
            *("eig", "svd", "lstsq", "qr$", "^lu", "cholesky", "householder", "ormqr", "fft"),
            *("merged_", "dgc", "dpsgd", "lamb", "lars", "ftrl", "sparse_momentum", "average_acc"),
            *("triple_grad", "unpool", "^nce", "hash", "legacy_", "prune", "limit"),
            *("assign_pos", "number_count", "class_center", "margin", "match", "cvm", "batch_fc"),
        ]
    )
)

# Folders of kernels for other devices and other kinds of tensors.
_OTHER_HEADERS = {
    *("sparse", "strings", "selected_rows", "funcs", "custom", "xpu", "gpu", "cpu", "onednn"),
    *("primitive", "autotune", "impl", "legacy"),
}

# Kernels whose function does not bear their name.
_FUNCTIONS = {
    "conv2d": "ConvKernel",
    "conv2d_grad": "ConvGradKernel",
    "depthwise_conv2d": "DepthwiseConvKernel",
    "depthwise_conv2d_grad": "DepthwiseConvGradKernel",
    "dropout": "DropoutRawKernel",
    "dropout_grad": "DropoutGradRawKernel",
    "nll_loss": "NllLossRawKernel",
    "adam": "AdamDenseKernel",
    "adamw": "AdamwDenseKernel",
    "adagrad": "AdagradDenseKernel",
    "momentum": "MomentumDenseKernel",
    "rmsprop": "RmspropDenseKernel",
    "sgd": "SGDDenseKernel",
    "mean_grad": "ReduceMeanGradKernel",
    "sum_grad": "ReduceSumGradKernel",
    "max_grad": "ReduceMaxGradKernel",
    "min_grad": "ReduceMinGradKernel",
    "amax_grad": "ReduceAMaxGradKernel",
    "amin_grad": "ReduceAMinGradKernel",
}

# Defined in their headers, not declared.
_INLINE = {
    "SwiGLUKernel": "const DenseTensor& x, const paddle::optional<DenseTensor>& y, DenseTensor* z",
    "SwiGLUGradKernel": (
        "const DenseTensor& x, const paddle::optional<DenseTensor>& y, const DenseTensor& dz, "
        "DenseTensor* dx, DenseTensor* dy"
    ),
    "LinearV2GradKernel": (
        "const DenseTensor& input, const DenseTensor& weight, const DenseTensor& bias, "
        "const DenseTensor& out_grad, bool transpose_weight, DenseTensor* input_grad, "
        "DenseTensor* weight_grad, DenseTensor* bias_grad"
    ),
}

# Written by hand, in device/own_kernels.cc.
_OWN = {"cast", "contiguous", "strided_copy", "assign"}

_WIDE_KEYS = ("float32", "float64", "int32", "int64", "bool")
_LOW_KEYS = ("float16", "bfloat16")

_DECLARATION = re.compile(
    r"template\s*<typename T,\s*typename \w+>\s*"
    r"(?:__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)\s*)?"
    r"void\s+(\w+Kernel)\(\s*const \w+\s*&\s*\w+\s*,([^;{]*?)\)\s*;"
)
_OTHER_TENSORS = re.compile(
    "SelectedRows|TensorArray|ExtendedTensor|Sparse|StringTensor|RawTensor|FetchList|FeedList|Vocab|Strings"
)


class Kernel(NamedTuple):
    """A kernel of the CPU's that is lifted."""

    name: str
    keys: Sequence[str]
    """Its dtypes on the device."""
    arguments: str

    def definition(self) -> str:
        """The line that says what it is."""
        names = [re.split(r"[ *&]", argument)[-1] for argument in _split(self.arguments)]
        master = next((name for name in names if name == "master_param"), None)
        if master is None:
            return f"LIFTED({self.name}, {self.arguments})"
        outputs = ("param_out", names[-1])
        places = ", ".join(str(names.index(name)) for name in (master, *outputs))
        return f"LIFTED_OPTIMIZER({self.name}, {places}, {self.arguments})"

    def registration(self) -> str:
        """The line that registers it."""
        keys = ", ".join(f"DataType::{key.upper()}" for key in self.keys)
        return f"  Lift<Kernel_{self.name}, {keys}>();"


def _split(arguments: str) -> list[str]:
    """At commas outside of ``<>``."""
    return [each.strip() for each in re.split(r",(?![^<>]*>)", arguments)]


def kernels() -> list[Kernel]:
    """Those that the CPU has in float32 or in integers, whose C++ type is known."""
    functions = _functions()
    by_lower = {name.lower(): name for name in functions}
    found = []
    for name, keys in sorted(_registered().items()):
        function = _FUNCTIONS.get(name, by_lower.get(name.replace("_", "") + "kernel", ""))
        if (
            name not in _OWN
            and not _LEFT_OUT.search(name)
            and len(functions.get(function, ())) == 1
        ):
            (arguments,) = functions[function]
            found.append(Kernel(name, keys, arguments))
    return found


def _registered() -> Mapping[str, Sequence[str]]:
    """The keys that the device will have, by kernel; 16-bit ones where the CPU has float32."""
    import paddle  # not before: what Paddle is imported with decides whether it loads the device

    registered = {}
    for name, keys in paddle.base.core._get_registered_phi_kernels("function").items():
        on_cpu = {key.rstrip(")").split(", ")[-1] for key in keys if key.startswith("(CPU, ")}
        low = _LOW_KEYS if "float32" in on_cpu else ()
        chosen = [*(key for key in _WIDE_KEYS if key in on_cpu), *low]
        if chosen:
            registered[name] = chosen
    return registered


def _functions() -> Mapping[str, set[str]]:
    """The argument lists of each declared kernel function; overloads have several."""
    found: dict[str, set[str]] = {name: {arguments} for name, arguments in _INLINE.items()}
    for name, arguments in _DECLARATION.findall(_preprocessed()):
        if not _OTHER_TENSORS.search(arguments):
            plain = re.sub(r"\s*=[^,]*", "", re.sub(r"\s+", " ", arguments)).strip()
            found.setdefault(name, set()).add(plain)
    return found


def _headers() -> Iterator[Path]:
    for header in sorted((INCLUDE / "paddle/phi/kernels").rglob("*kernel.h")):
        path = header.relative_to(INCLUDE)
        if _OTHER_HEADERS.isdisjoint(path.parts[3:-1]):
            yield path


def _preprocessed() -> str:
    """All headers of kernels, macros expanded."""
    with tempfile.TemporaryDirectory() as folder:
        every, stubs = Path(folder, "every.h"), Path(folder, "stubs")
        every.write_text("".join(f'#include "{header}"\n' for header in _headers()))
        command = [
            "g++",
            "-std=c++17",
            "-E",
            "-P",
            *INCLUDES,
            f"-I{stubs}",
            "-x",
            "c++",
            str(every),
        ]
        while True:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout
            missing = re.findall(r"fatal error: (\S+): No such file", done.stderr)
            if not missing:
                raise RuntimeError(f"Paddle's headers are not read:\n{done.stderr[-2000:]}")
            for name in missing:
                stub = stubs / name
                stub.parent.mkdir(parents=True, exist_ok=True)
                stub.touch()


def write_sources(folder: Path, parts: int) -> list[Path]:
    """C++ that lifts all kernels, in ``parts`` files, so that they compile beside each other."""
    every = kernels()
    files = []
    for part in range(parts):
        file = folder / f"lifted_{part}.cc"
        file.write_text(_source(f"RegisterPart{part}", every[part::parts]))
        files.append(file)
    calls = [f"RegisterPart{part}();" for part in range(parts)]
    whole = folder / "lifted.cc"
    whole.write_text(
        "namespace virtual_gpu {\n"
        + "".join(f"void {call}\n" for call in calls)
        + "void RegisterLiftedKernels() {\n"
        + "".join(f"  {call}\n" for call in calls)
        + "}\n}  // namespace virtual_gpu\n"
    )
    return [*files, whole]


def _source(function: str, chosen: Sequence[Kernel]) -> str:
    return "\n".join(
        [
            '#include "lifting.h"',
            "namespace virtual_gpu {",
            "namespace {",
            "using namespace phi;",
            *(kernel.definition() for kernel in chosen),
            "}  // namespace",
            f"void {function}() {{",
            *(kernel.registration() for kernel in chosen),
            "}",
            "}  // namespace virtual_gpu\n",
        ]
    )
