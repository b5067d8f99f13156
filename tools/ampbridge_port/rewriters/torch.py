"""Torch's AMP calls (2.13) in the words of ampbridge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ampbridge_port.dialect import Call
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


def update(call: Call) -> None:
    """``update()``; a scale of one's own is no argument of ours."""
    check_plain(call)
    if text(call, "new_scale") is not None:
        msg = f"{call.place.text}: the scale follows the rule; it cannot be set by update()."
        raise NoReplacement(msg, "scaler.load_state_dict({**scaler.state_dict(), 'scale': ...})")


def unsupported(call: Call) -> None:
    """A setting that ours has from the start."""
    msg = f"{call.place.text}: the settings of a GradScaler are fixed when it is made."
    raise NoReplacement(msg, "scaler = ampbridge.GradScaler(...); load_state_dict of the old one.")


_REGIONS = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
_SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")

_METHODS: Mapping[str, Replacement] = {
    "unscale_": partial(renamed, "unscale"),
    "is_enabled": partial(attribute, "enabled"),
    "get_growth_factor": partial(attribute, "config.growth_factor"),
    "get_backoff_factor": partial(attribute, "config.backoff_factor"),
    "get_growth_interval": partial(attribute, "config.growth_interval"),
    "update": update,
    **dict.fromkeys(("scale", "step", "get_scale", "state_dict", "load_state_dict"), unchanged),
    **dict.fromkeys(
        ("set_growth_factor", "set_backoff_factor", "set_growth_interval"), unsupported
    ),
}

REPLACEMENTS: Mapping[str, Replacement] = {
    **dict.fromkeys(_REGIONS, autocast),
    **dict.fromkeys(_SCALERS, grad_scaler),
    **{f"{scaler}.{name}": each for scaler in _SCALERS for name, each in _METHODS.items()},
}
