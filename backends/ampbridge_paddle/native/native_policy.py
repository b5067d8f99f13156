"""A policy as arguments of ``paddle.amp.auto_cast`` and ``paddle.amp.decorate``, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import paddle

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import ArgumentTypeError, UnsupportedError, listed
from ampbridge.policies.native_lists import paddle_lists
from ampbridge.policies.paddle_names import PaddleList, paddle_list
from ampbridge.policies.policy import Policy

_FUNCTIONS = {"auto_cast": paddle.amp.auto_cast, "decorate": paddle.amp.decorate}
# Of decorate: what a recipe says, not a policy.
_OF_RECIPES = ("master_grad", "save_dtype")


def native_policy(policy: Policy) -> dict[str, dict[str, Any] | None]:
    """See ``Backend.native_policy``."""
    if policy.level == "O0":
        return {"auto_cast": {"enable": False}, "decorate": None}
    lists = paddle_lists(policy)
    region = {
        "custom_white_list": set(lists.white) or None,
        "custom_black_list": set(lists.black) or None,
        "level": policy.level,
        "dtype": policy.dtype,
    }
    at_o2 = {"level": "O2", "dtype": policy.dtype, "master_weight": policy.masters is not None}
    return {"auto_cast": region, "decorate": at_o2 if policy.level == "O2" else None}


def policy_of_native(native: Any) -> Policy:
    """See ``Backend.policy_of_native``. Warns of names that Paddle takes no notice of."""
    region = _arguments("auto_cast", _given(native)["auto_cast"])
    decoration = _arguments("decorate", native.get("decorate") or {})
    level, dtype = str(region["level"]).upper(), _name(region["dtype"])
    if level == "O0" or not region["enable"]:
        return Policy("O0")
    if level == "O2" and not region["use_promote"]:
        raise _no_policy("use_promote=False", "use_promote=True")
    if level not in ("O1", "O2"):
        raise _no_policy(f"level={level!r}", "level='O1'")
    is_decorated = level == "O2" and native.get("decorate") is not None
    return Policy(
        level,  # type: ignore[arg-type]  # it is one of two
        dtype,
        lists="paddle",
        allow=_read(region, "custom_white_list"),
        deny=_read(region, "custom_black_list"),
        **(_of_model(decoration, level, dtype) if is_decorated else {}),
    )


def _given(native: Any) -> Mapping[str, Any]:
    if not (isinstance(native, Mapping) and isinstance(native.get("auto_cast"), Mapping)):
        wrong = (
            f"Paddle's words for a policy are a dict of its functions' arguments, not {native!r}."
        )
    elif unknown := sorted(set(native) - set(_FUNCTIONS)):
        wrong = f"Paddle's functions are {listed(_FUNCTIONS)}, not {unknown[0]!r}."
    else:
        return native
    hint = "Hint: Policy.from_native({'auto_cast': {'level': 'O1'}})"
    raise ArgumentTypeError(f"{wrong}\n{hint}")


def _arguments(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, which the function must take, and the defaults of its other arguments."""
    parameters = signature(_FUNCTIONS[function]).parameters
    unknown = sorted(set(given) - set(parameters))
    if unknown:
        raise ArgumentTypeError(
            f"paddle.amp.{function} has no argument {unknown[0]!r}; it has {listed(parameters)}.\n"
            f"Hint: leave {unknown[0]!r} out."
        )
    return {name: p.default for name, p in parameters.items()} | dict(given)


def _of_model(decoration: Mapping[str, Any], level: str, dtype: str) -> dict[str, Any]:
    """Read ``keep`` and ``masters`` from the arguments of ``decorate``."""
    for name in _OF_RECIPES:
        if decoration[name]:
            raise _no_policy(f"{name}={decoration[name]!r}", "amp.Recipe")
    if (str(decoration["level"]).upper(), _name(decoration["dtype"])) != (level, dtype):
        raise UnsupportedError(
            "Its auto_cast and its decorate differ in level or dtype.\nHint: give both the same."
        )
    excluded = decoration["excluded_layers"] or []
    layers = excluded if isinstance(excluded, list) else [excluded]
    for layer in layers:
        if not isinstance(layer, type):
            raise _no_policy(f"excluded_layers={layer!r}", "its class or its name")
    keep = [layer.__name__ for layer in layers]
    return {"masters": None if decoration["master_weight"] is False else "float32", "keep": keep}


def _read(region: Mapping[str, Any], argument: PaddleList) -> Sequence[str]:
    reading = paddle_list(region[argument] or (), argument)
    for remark in (*reading.ignored.values(), *reading.notes.values()):
        warn(f"{remark.message}\nHint: {remark.hint}")
    if reading.lost:
        remark = next(iter(reading.lost.values()))
        raise UnsupportedError(f"{remark.message}\nHint: leave it out of {argument}.")
    return reading.canonical


def _name(dtype: Any) -> str:
    """The name of a dtype, which may be given by its name."""
    return str(dtype).rpartition(".")[2].lower()


def _no_policy(what: str, hint: str) -> UnsupportedError:
    return UnsupportedError(f"No policy says what {what} does in Paddle.\nHint: {hint}")
