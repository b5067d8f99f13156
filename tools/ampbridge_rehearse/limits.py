"""What a rehearsal has not: Inductor and Triton, NCCL, CUDA graphs, a second device.

Compiled code runs by another backend, and the report says so. The rest is refused, with words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ampbridge.errors import UnsupportedError

COMPILED = "aot_eager"
_WITHOUT_KERNELS = ("inductor", "cudagraphs")

# Modules that are made of CUDA kernels.
_OF_KERNELS = frozenset(
    {
        *("apex", "bitsandbytes", "cupy", "deepspeed", "flash_attn"),
        *("mamba_ssm", "transformer_engine", "triton", "xformers"),
    }
)


@contextmanager
def kept() -> Iterator[list[str]]:
    """Replace or refuse what is not here; gives what was replaced, in sentences for the report."""
    said: list[str] = []
    places: list[tuple[Any, str, Any]] = [
        (torch, "compile", _compile(torch.compile, said)),
        (torch.cuda.CUDAGraph, "__new__", _no_graphs),
    ]
    if torch.distributed.is_available():
        start = torch.distributed.init_process_group
        places.append((torch.distributed, "init_process_group", _without_nccl(start)))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, replacement in places:
        setattr(owner, name, replacement)
    try:
        yield said
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def _compile(original: Any, said: list[str]) -> Any:
    def compile(*args: Any, backend: Any = "inductor", **kwargs: Any) -> Any:
        if backend not in _WITHOUT_KERNELS:
            return original(*args, backend=backend, **kwargs)
        sentence = (
            f"torch.compile ran its graphs by {COMPILED}: traced as on a GPU, not fused. {backend} "
            "makes other kernels, which keep some roundings in float32."
        )
        if sentence not in said:
            said.append(sentence)
        for of_inductor in ("mode", "options"):
            kwargs.pop(of_inductor, None)
        return original(*args, backend=COMPILED, **kwargs)

    return compile


def _without_nccl(original: Any) -> Any:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is None or "nccl" in str(backend):
            msg = (
                "The script starts a process group on NCCL; a rehearsal is of one process and one "
                "device.\nHint: start the script as for a single GPU, without its distributed options"
            )
            raise UnsupportedError(msg)
        return original(backend, *args, **kwargs)

    return init_process_group


def _no_graphs(cls: Any, *args: Any, **kwargs: Any) -> Any:
    del cls, args, kwargs
    msg = "The virtual CUDA device has no CUDA graphs.\nHint: rehearse the script without them"
    raise UnsupportedError(msg)


def hint(error: BaseException) -> str | None:
    """What an error of the script has to do with the rehearsal; None: nothing that is known."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").partition(".")[0]
        if missing in _OF_KERNELS:
            return f"{missing} has CUDA kernels of its own, which need a GPU; rehearse without it"
    if "without overflow" in text:
        return "a GPU raises this as well; write torch.finfo(x.dtype).min or -inf for the number"
    if text.startswith('"aten::') and "not implemented for" in text:
        return (
            "a GPU has no such kernel either; call it on x.float(), "
            "within torch.autocast('cuda', enabled=False)"
        )
    if "invalid device ordinal" in text:
        return "the virtual CUDA device is cuda:0, and there is no other"
    if "from the 'CUDA' backend" in text or "CUDA_HOME" in text:
        return "the virtual CUDA device has torch's own kernels alone, and not all of them"
    return None


def settings() -> list[str]:
    """What the script has set that a real device would follow, in sentences for the report."""
    if torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest":
        return ["TF32 is allowed: a real GPU multiplies float32 matrices with 10 bits of fraction."]
    return []
