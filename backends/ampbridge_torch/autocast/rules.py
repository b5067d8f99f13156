"""What a policy asks of torch beyond ``torch.autocast``, function by function.

What ``torch.autocast`` does by itself is data, in canonical names: ``native_lists.json`` for the
CPU, the core's list set "torch" for CUDA and for the devices whose autocast is CUDA's. Of others
torch says which ops they cast, and not to what; so nothing is left to them that the policy names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import cache
from importlib.resources import files
from itertools import count
from threading import Lock
from types import FunctionType, SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch

from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops, op_table
from ampbridge.policies.effects import warn_of_rules_without_effect
from ampbridge.policies.op_table import Category, Op, OpList
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast import execution, simulation
from ampbridge_torch.autocast.cuda_composites import by_parts
from ampbridge_torch.autocast.functions import (
    Function,
    aten_functions,
    computing_functions,
    functions_named,
    is_composite,
    own_functions,
    revealed_composites,
)
from ampbridge_torch.autocast.simulation import RoundsOnce
from ampbridge_torch.devices import DeviceType

# "follow" stands under simulation alone: the op runs in the dtype that arrives, and is simulated
# where that is low.
Treatment: TypeAlias = Category | Literal["follow"]


class Rule(NamedTuple):
    """The treatment of one function by device; None leaves it to ``torch.autocast``.

    Attributes:
        input_alone: only the first argument is cast.
        rounds_once: when torch's own low kernel is as good as a simulation; this and what follows are for
            simulation.
        native_with: the arguments with which torch's own kernel has to run, and their positions.
        saves_result, multiplies, adds_bias: how its kernels, and those of its gradient, compute.
        always_simulated: natively too, for want of low kernels.
    """

    cpu: Treatment | None
    accelerator: Treatment | None
    input_alone: bool
    rounds_once: RoundsOnce = "never"
    native_with: tuple[tuple[str, int], ...] = ()
    saves_result: bool = False
    multiplies: bool = False
    adds_bias: bool = False
    always_simulated: bool = False

    def on(self, device_type: DeviceType) -> Treatment | None:
        return self.cpu if device_type == "cpu" else self.accelerator


@dataclass(eq=False, repr=False)
class Rules:
    """What the mode does with each function.

    Attributes:
        table: for each function a ``Rule``, or the twin of a composite.
        follows_autocast: the rules do nothing where ``torch.autocast`` is disabled.
        lifts: ops that ``torch.autocast`` would run in low precision run in float32.
        simulates: what is low on the CPU is simulated.
        simulates_alone: nothing but a simulation is allowed.
        functions: Python functions that are ops (``ampbridge.policies.function_ops``), by name.
        by_path: some of them are found where modules hold them.
        unseen_by_dynamo: some are the ``apply`` of a ``torch.autograd.Function``, which Dynamo calls
            without looking it up.
    """

    table: Mapping[Function, Rule | FunctionType]
    follows_autocast: bool = True
    lifts: bool = False
    simulates: bool = False
    simulates_alone: bool = False
    listed_functions: InitVar[function_ops.Rules] = ()

    def __post_init__(self, listed_functions: function_ops.Rules) -> None:
        self.functions = {name: Rule(each, each, False) for name, each in listed_functions}
        by_path = function_ops.named_by_path(listed_functions)
        self.by_path = bool(by_path)
        self.unseen_by_dynamo = any(
            op.owner is not None and issubclass(op.owner[0], torch.autograd.Function)
            for op in by_path
        )
        vars(self).update((attribute_of(f), rule) for f, rule in self.table.items())

    @property
    def is_empty(self) -> bool:
        """Whether ``torch.autocast`` does all there is to do."""
        return not (self.table or self.functions)


_compiled = SimpleNamespace()
_names: dict[tuple[Policy, tuple[DeviceType, ...], function_ops.Rules], str] = {}
_numbers = count()  # no name is given twice: graphs that Dynamo has compiled may hold one
_lock = Lock()
_attributes: dict[Function, str] = {}


@torch.compiler.assume_constant_result
def attribute_of(function: Function) -> str:
    """The attribute of ``Rules`` with a function's rule, for Dynamo, which guards on all keys of a dict."""
    return _attributes.setdefault(function, f"rule_{next(_numbers)}")


def rules_for(policy: Policy, device_types: tuple[DeviceType, ...]) -> Rules:
    """The rules that ``torch.autocast`` does not have by itself on these devices; made once."""
    handed_over = policy if _private.DYNAMO_HANDS_OVER_OBJECTS else id(policy)
    rules: Rules = getattr(_compiled, _name(handed_over, device_types))
    return rules


@torch.compiler.assume_constant_result
def _name(policy: Policy | int, device_types: tuple[DeviceType, ...]) -> str:
    """The attribute of ``_compiled`` that holds the rules of a policy, or of the one with this ``id``.

    Dynamo calls it as it is, with guards on its arguments, and traces the lookup of the attribute,
    with guards on the rules that it meets; rules that a call returned could not be guarded, and a
    dict would not show it an entry made while it traces.
    """
    if isinstance(policy, int):
        policy = cast(Policy, _private.object_at(policy))
    if not vars(policy):  # made while Dynamo traces: it hands over an empty shell
        raise UnsupportedError(
            "A Policy made inside of a compiled function cannot be read while it is compiled.\n"
            "Hint: make it outside: policy = Policy(...), then ampbridge.autocast(policy) inside."
        )
    key = policy, device_types, function_ops.rules_of(policy)
    name = _names.get(key)
    if name is None:
        rules = _compile(*key)
        with _lock:
            name = _names.setdefault(key, f"rules_{next(_numbers)}")
            vars(_compiled).setdefault(name, rules)
            while len(_names) > POLICIES_REMEMBERED:
                del vars(_compiled)[_names.pop(next(iter(_names)))]
    return name


def _compile(
    policy: Policy, device_types: tuple[DeviceType, ...], functions: function_ops.Rules
) -> Rules:
    warn_of_rules_without_effect(policy, "torch", "torch", "torch", has_effect)
    simulates = execution.simulates(policy, device_types)
    if simulates:
        execution.warn_once(policy)
    on_cpu = _categories(policy, "cpu", simulates) if "cpu" in device_types else {}
    accelerator = next((each for each in device_types if each != "cpu"), None)
    elsewhere = {} if accelerator is None else _categories(policy, accelerator)
    table: dict[Function, Rule | FunctionType] = {
        function: _rule(function, on_cpu.get(function), elsewhere.get(function), simulates)
        for function in {**on_cpu, **elsewhere}
    }
    if simulates:
        # C++ composites that the policy leaves to what CUDA's autocast does with their parts.
        on_cuda = native_list("cuda")
        for function, (ops, run) in by_parts().items():
            same = all(policy.category(op) == on_cuda.category(op) for op in ops)
            if same and ops[0] not in policy.deny:
                table[function] = run
    table.update(revealed_composites(table))
    if policy.level == "O0" or policy.lists == "native":
        return Rules(table, follows_autocast=policy.level != "O0")
    perhaps_low = [native_list(d).allow if is_known(d) else cast_by(d) for d in device_types]
    return Rules(
        table,
        lifts=any(policy.op_list.deny & low for low in perhaps_low),
        simulates=simulates,
        simulates_alone=policy.execution == "simulated",
        listed_functions=functions,
    )


def _rule(
    function: Function, on_cpu: Treatment | None, elsewhere: Treatment | None, simulates: bool
) -> Rule:
    # They write to their running statistics: only the input is cast, the kernels take it mixed.
    input_alone = function.__name__ in ("batch_norm", "instance_norm")
    if not simulates:
        alone = on_cpu == "follow"  # which natively stands for nothing else
        return Rule(on_cpu, elsewhere, input_alone, always_simulated=alone)
    return Rule(
        on_cpu,
        elsewhere,
        input_alone,
        simulation.rounds_once().get(function, "never"),
        simulation.native_arguments(function),
        function in aten_functions(simulation.SAVES_RESULT),
        function in aten_functions(simulation.MULTIPLIES),
        function in functions_named("aten", "linear"),
    )


def _following() -> frozenset[Function]:
    """The functions that a simulation has to see though no list names them.

    Not those that ``torch.autocast`` casts by itself, under whatever name, and not those whose
    kernels are as good as the simulation.
    """
    cast_by_autocast = _private.registered_for_autocast("cpu") or frozenset()
    exact = {f for f, kernel in simulation.rounds_once().items() if kernel == "always"}
    return computing_functions() - aten_functions(cast_by_autocast) - exact


def _categories(
    policy: Policy, device_type: DeviceType, simulates: bool = False
) -> dict[Function, Treatment]:
    """The category of each function that this device treats otherwise by itself.

    Under simulation also of those that it would run low.
    """
    # Ops that the policy lists and the op table lacks: torch.autocast casts none of them.
    listed_alone = policy.own_rules("torch")
    own = {f: category for name, category in listed_alone.items() for f in own_functions(name)}
    if policy.level == "O0":
        return {**dict.fromkeys(computing_functions(), "deny"), **own}
    if policy.lists == "native":
        return {}
    found: dict[Function, Treatment] = {}
    lists = policy.op_list
    if lists.unlisted != "follow":
        rest: Category = "deny" if lists.unlisted == "full" else "promote"
        found.update(dict.fromkeys(computing_functions(), rest))
    elif simulates:
        found.update(dict.fromkeys(_following(), "follow"))
    listed = {*policy.allow, *policy.deny}
    for namespace in ("aten", "torch"):
        owners = op_table.native_names(namespace)
        for spelling, category in policy.native_rules(namespace).items():
            verdict = _verdict(owners[spelling], category, lists, device_type)
            is_listed = not listed.isdisjoint(owners[spelling])
            on_cuda = native_list("cuda").category(owners[spelling][0])
            for function in functions_named(namespace, spelling):
                if is_listed and _is_ours(function, category, verdict, device_type):
                    found[function] = category
                elif simulates and is_composite(function) and category == on_cuda:
                    found.pop(function, None)  # it comes to that by its parts, as it does there
                elif verdict == "native":
                    found.pop(function, None)
                    if simulates and category == "allow" and not is_composite(function):
                        found[function] = "allow"
                elif verdict != "rest" and (verdict != "promote" or not is_composite(function)):
                    found[function] = verdict
    if device_type == "cpu" and not simulates:
        found.update(
            (function, "follow")
            for function in aten_functions(_WITHOUT_LOW_KERNELS)
            if found.get(function, "promote") == "promote"
        )
    if simulates:
        low_on_cuda = [op for op in simulation.LOW_ON_CUDA if policy.category(op) == "promote"]
        found.update(dict.fromkeys(aten_functions(frozenset(low_on_cuda)), "follow"))
        # Where the policy says nothing of it: no op of any list, and a sum in its gradient.
        found.setdefault(torch.Tensor.__getitem__, "follow")
    return {**found, **own}


def _is_ours(function: Function, category: Category, verdict: str, device_type: DeviceType) -> bool:
    """Whether a function that the policy itself lists is cast here, whatever its relatives do.

    ``torch.autocast`` casts what is registered: ``max_pool3d`` and not the variant that returns
    indices, ``matmul`` and not each ``inner``. (What is ``special_`` calls its namesake.)
    """
    if category == "allow" and is_composite(function):
        return False
    registered = _private.registered_for_autocast(device_type) or ()
    return verdict != "native" or function.__name__.removeprefix("special_") not in registered


# torch's CPU refuses them in 16 bits, and its autocast does not widen them.
_WITHOUT_LOW_KERNELS = (
    *("det", "linalg_det", "slogdet", "linalg_slogdet", "logdet", "linalg_pinv", "linalg_lu"),
    *("linalg_lu_factor", "linalg_ldl_factor", "linalg_solve_triangular"),
)


def functions_of(op: Op) -> list[tuple[Function, str, str]]:
    """Every function that is ``op``, with the namespace and the spelling that lead to it."""
    return [
        (function, namespace, spelling)
        for namespace in ("torch", "aten")
        for spelling in op.names.get(namespace, ())
        for function in functions_named(namespace, spelling)
    ]


def has_effect(op: Op) -> bool:
    """Whether torch has a function that is ``op``, and that a region can cast."""
    return bool(functions_of(op))


def _verdict(
    candidates: Sequence[str], category: Category, lists: OpList, device_type: DeviceType
) -> Category | Literal["native", "rest"]:
    """What becomes of a spelling that stands for ``candidates``, its owner first.

    "native": the device does by itself as the policy says. "rest": what becomes of every op that
    stands on no list. A composite that is to promote is left to its parts.
    """
    native = native_list(device_type)
    owner = candidates[0]
    if native.category(owner) == category and (category != "promote" or owner in native.promote):
        return "native"
    if category == "promote" and owner in ops_without_kernels(device_type):
        return "native"
    if category == "promote" and owner not in lists.promote:
        return "rest" if cast_by(device_type).isdisjoint(candidates) else "promote"
    if category == "deny" and not any(op in lists.deny for op in candidates):
        return "rest"
    return category


# -- what torch.autocast does by itself


@cache
def native_list(device_type: DeviceType) -> OpList:
    """What ``torch.autocast(device_type)`` of the installed torch is known to do by itself."""
    if device_type == "cpu":
        lists = _data()["cpu"]
        allow, deny, promote = (frozenset(lists[k]) for k in ("allow", "deny", "promote"))
        recorded = OpList(allow, deny, promote, "follow")
    elif has_lists_of_cuda(device_type):
        recorded = op_table.op_list("torch", "O1", "float16")
    else:
        return OpList(frozenset(), frozenset(), frozenset(), "follow")
    installed = _private.registered_for_autocast(device_type)
    if installed is None:
        return recorded
    names = frozenset(_data()["registered"]["cpu" if device_type == "cpu" else "cuda"])
    if device_type not in ("cpu", "cuda"):
        names -= _OF_CUDA_ALONE
    absent = _ops_of(names - installed)  # the installed torch is older than the record, or newer
    return OpList(
        recorded.allow - absent, recorded.deny - absent, recorded.promote - absent, "follow"
    )


def _ops_of(aten_names: frozenset[str]) -> frozenset[str]:
    return frozenset(
        op.name
        for op in op_table.ops().values()
        if not aten_names.isdisjoint(op.names.get("aten", ()))
    )


# They register CUDA's ops by the same macros of aten/src/ATen/autocast_mode.h, which
# tests/torch/test_devices.py tries. MPS, which lacks a quarter of those, is none of them.
_AS_CUDA = frozenset({"cuda", "xpu", "mtia"})
_OF_CUDA_ALONE = frozenset({"cudnn_convolution", "cudnn_convolution_transpose"})


def has_lists_of_cuda(device_type: DeviceType) -> bool:
    """Whether ``torch.autocast(device_type)`` follows CUDA's lists."""
    return device_type in _AS_CUDA


def is_known(device_type: DeviceType) -> bool:
    """Whether the lists of its autocast are known here."""
    return device_type == "cpu" or has_lists_of_cuda(device_type)


@cache
def cast_by(device_type: DeviceType) -> frozenset[str]:
    """The ops that ``torch.autocast(device_type)`` casts low or to float32, as far as torch tells."""
    if is_known(device_type):
        native = native_list(device_type)
        return native.allow | native.deny
    installed = _private.registered_for_autocast(device_type)
    return frozenset(op_table.ops()) if installed is None else _ops_of(installed)


def ops_without_kernels(device_type: DeviceType) -> frozenset[str]:
    """Ops that no list needs to name: the device has no 16-bit kernel, so they run in float32."""
    return frozenset(_data()["no_low_kernel"]) if device_type == "cpu" else frozenset()


@cache
def _data() -> Any:
    file = files("ampbridge_torch.autocast") / "native_lists.json"
    return json.loads(file.read_text(encoding="utf-8"))
