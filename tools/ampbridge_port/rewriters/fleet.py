"""What fleet does that our scaler cannot see: pipelines, and gradients in buffers of their own.

docs/distributed.md lists it; a script with such a line keeps Paddle's scaler.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ampbridge_port.dialect import Call
from ampbridge_port.reading import Finding, Place

_SCALERS = ("paddle.amp.GradScaler", "paddle.amp.AmpScaler")
_BUFFERS = frozenset({"split_param", "tensor_fusion", "comm_overlap"})


def refused(text: str, file: str, calls: Sequence[Call]) -> Iterator[Finding]:
    """Lines of a script with Paddle's scaler for which ours raises an error."""
    if not any(call.name in _SCALERS for call in calls):
        return
    for node in ast.walk(ast.parse(text)):
        written = ast.get_source_segment(text, node) or ""
        if _is_pipeline(node):
            message = "runs the model and steps by itself, and takes no scaler but Paddle's"
            hint = 'scaler.to_native("paddle") for it, where scaler is an ampbridge.GradScaler.'
        elif _has_buffers(node):
            message = "keeps gradients in buffers of its own, which our scaler cannot see"
            hint = "take it out; sharding of stage 1 works without it."
        else:
            continue
        first = written.splitlines()[0]
        place = Place(file, node.lineno, node.col_offset, written)  # type: ignore[attr-defined]
        yield Finding("lost", place, f"{first}: {message}.", hint)


def _is_pipeline(node: ast.AST) -> bool:
    """``model.train_batch(data, optimizer, lr_scheduler, scaler)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    named = any(each.arg == "scaler" for each in node.keywords)
    return node.func.attr == "train_batch" and (named or len(node.args) > 3)


def _has_buffers(node: ast.AST) -> bool:
    """``sharding_configs.split_param = True``, ``{"tensor_fusion": True}``."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        return node.targets[0].attr in _BUFFERS and _is_true(node.value)
    return isinstance(node, ast.Dict) and any(
        isinstance(key, ast.Constant) and key.value in _BUFFERS and _is_true(value)
        for key, value in zip(node.keys, node.values, strict=True)
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
