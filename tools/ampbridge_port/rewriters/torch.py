"""Torch's AMP calls (2.13) in the words of ampbridge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ampbridge_port.reader.dialects.calls import Call
from ampbridge_port.rewriters.expressions import (
    UNKNOWN,
    NoReplacement,
    Replacement,
    check_plain,
    dtype,
    literal,
    operand,
    policy,
    receiver,
    scaler,
    text,
)

SETTINGS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def autocast(call: Call) -> str:
    """``torch.autocast`` and those for one device: a region."""
    check_plain(call)
    made = policy('"O1"', _dtype(call), text(call, "enabled"))
    return f'ampbridge.autocast({made}, backend="torch")'


def _dtype(call: Call) -> str:
    """The dtype passed, or the default of the device type: float16, on CPUs bfloat16."""
    written = text(call, "dtype")
    if written is not None:
        return dtype(written, "float16")
    device = '"cpu"' if ".cpu." in call.name else text(call, "device_type") or '"cuda"'
    known = literal(device)
    if known is UNKNOWN:
        return f'"bfloat16" if {operand(device)} == "cpu" else "float16"'
    return '"bfloat16"' if known == "cpu" else '"float16"'


def grad_scaler(call: Call) -> str:
    """``torch.amp.GradScaler``: the device is found by ours."""
    check_plain(call)
    return scaler(call, "torch", {name: name for name in SETTINGS})


def renamed(name: str, call: Call) -> str:
    """A method by our name."""
    check_plain(call)
    arguments = ", ".join(each.place.text for each in call.arguments.values())
    return f"{receiver(call)}.{name}({arguments})"


def attribute(name: str, call: Call) -> str:
    """A getter that is an attribute of ours."""
    check_plain(call)
    return f"{receiver(call)}.{name}"


def unchanged(call: Call) -> None:
    """A method of the same name and meaning."""
    check_plain(call)


def unsupported(call: Call) -> None:
    """A setting that ours has from the start."""
    why = "the settings of a GradScaler are fixed when it is made"
    hint = "pass it to ampbridge.GradScaler(...); load_state_dict takes the state of the old one."
    raise NoReplacement(call, why, hint)


def methods(scalers: tuple[str, ...], **replacements: Replacement) -> dict[str, Replacement]:
    """The replacements of methods, by name, of several scalers that have them all."""
    return {f"{each}.{name}": made for each in scalers for name, made in replacements.items()}


_SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
_REGIONS = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
_NUMBERS = ("growth_factor", "backoff_factor", "growth_interval")

REPLACEMENTS: Mapping[str, Replacement] = {
    **dict.fromkeys(_REGIONS, autocast),
    **dict.fromkeys(_SCALERS, grad_scaler),
    **methods(
        _SCALERS,
        **dict.fromkeys(("scale", "step", "update", "get_scale"), unchanged),
        **{f"get_{name}": partial(attribute, f"config.{name}") for name in _NUMBERS},
        **{f"set_{name}": unsupported for name in _NUMBERS},
        unscale_=partial(renamed, "unscale"),
        is_enabled=partial(attribute, "enabled"),
    ),
}
