"""What runs in which precision: a frozen value that names no framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from typing import Any, Literal, cast

from ampbridge.errors import ArgumentTypeError, PolicyError, listed, slips
from ampbridge.errors.foreign_names import told_of
from ampbridge.errors.slips import did_you_mean, meant
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category, OpList

Level = Literal["O0", "O1", "O2"]
Masters = Literal["float32", "kahan", "stochastic", "none"]
Slots = Literal["float32", "bfloat16"]
Execution = Literal["native", "simulated", "auto"]
Float32 = Literal["ieee", "tf32", "default"]

LEVELS = ("O0", "O1", "O2")
LOW_DTYPES = ("float16", "bfloat16")
OUTPUT_DTYPES = ("float32", *LOW_DTYPES)
MASTERS: tuple[Masters | None, ...] = ("float32", "kahan", "stochastic", None)
WRITTEN_MASTERS = tuple(each or "none" for each in MASTERS)  # TOML has no null
SLOTS: tuple[Slots, ...] = ("float32", "bfloat16")
EXECUTIONS = ("native", "simulated", "auto")
FLOAT32S = ("ieee", "tf32", "default")

_WHY_NOT_IN_FLOAT16 = {
    "kahan": "16 more bits make a float32 of a bfloat16; a small float16 weight lacks up to 24",
    "stochastic": "under 6e-5 its numbers lie 6e-8 apart, however small the weight, and the updates of "
    "such weights would be noise",
}

POLICIES_REMEMBERED = 128
"""Of so many policies a backend keeps what it has compiled; a search may make thousands."""

# How frameworks and trainers spell the same things -> (level, dtype).
SPELLINGS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("float32", "fp32", "32", "32-true", "no"), ("O0", "float32")),
    **dict.fromkeys(("float16", "fp16", "16-mixed", "mixed_float16"), ("O1", "float16")),
    **dict.fromkeys(("bfloat16", "bf16", "bf16-mixed", "mixed_bfloat16"), ("O1", "bfloat16")),
}


@dataclass(frozen=True)
class Policy:
    """The level, the dtype and the op lists of a mixed-precision run.

    Args:
        level: ``"O0"``: everything in float32. ``"O1"``: op by op, according to the lists. ``"O2"``: low
            precision except for denied ops and kept layers, with float32 master weights.
        dtype: the low precision, ``"float16"`` or ``"bfloat16"``; always ``"float32"`` at O0.
        lists: the default lists, on any backend: ``"torch"`` (CUDA autocast's), ``"paddle"``,
            ``"tensorflow"`` (Grappler's), ``"safe"`` (wider deny list) or ``"native"`` (the framework's
            own autocast; ampbridge intercepts no op, but still casts the outputs of a model).
        allow, deny: ops to move to that list. An op is named by its canonical name (``"softmax"``), by
            a framework's own name with its prefix (``"paddle:reduce_sum"``), which may be outside of
            the op table (``"torch:my_library::my_op"``), or by the path of a Python function
            (``"package.module:function"``, see ``register_op``). The policy stores the names sorted,
            and in canonical form if the table has the op.
        keep: layers to run in float32, by a pattern for dotted names (``"decoder.*"``) or class name.
        masters: at O2, what keeps the part of an update that low-precision parameters cannot hold.
            ``"float32"``: float32 masters. For bfloat16 also ``"kahan"``: the 16 bits that rounding
            cuts off, which is as exact and takes 4 bytes for each weight, and ``"stochastic"``: nothing,
            an update is rounded up or down with the probability of its remainder. None (``"none"`` in
            files): nothing, what rounding loses is lost.
        slots: at O2, how an optimizer keeps the moments of low-precision parameters between steps.
            ``"bfloat16"`` takes 2 bytes for each number: they are float32 for the update, and then
            rounded up or down with the probability of the remainder.
        output_dtype: the dtype of the outputs of a call of the model; O0 returns float32.
        execution: ``"native"`` kernels, ``"simulated"`` rounding, or ``"auto"``.
        float32: how products of float32 values are computed. ``"ieee"``: in float32. ``"tf32"``: from
            inputs with 10 bits of fraction, where the device has TF32, or torch simulates it on a CPU.
            ``"default"``: by the framework's settings, which are not touched.

    Raises:
        PolicyError: for a value that is not allowed, an unknown op, or one op in both lists. For an
            op outside of the table, the backend raises it when a region of the policy first opens.
    """

    level: Level = "O1"
    dtype: str = "float16"
    _: KW_ONLY
    lists: str = "torch"
    allow: Sequence[str] = ()  # lists as well; kept as tuples
    deny: Sequence[str] = ()
    keep: Sequence[str] = ()
    masters: Masters | None = "float32"
    slots: Slots = "float32"
    output_dtype: str = "float32"
    execution: Execution = "auto"
    float32: Float32 = "default"

    def __post_init__(self) -> None:
        _check_choice("level", self.level, LEVELS, slips.LEVELS)
        if self.level == "O0":
            _check_choice("dtype", self.dtype, OUTPUT_DTYPES, slips.DTYPES)
            self._set("dtype", "float32")
        else:
            _check_choice("dtype", self.dtype, LOW_DTYPES, slips.DTYPES)
        _check_choice("lists", self.lists, op_table.LIST_SETS, slips.LIST_SETS)
        _check_choice("output_dtype", self.output_dtype, OUTPUT_DTYPES, slips.DTYPES)
        _check_choice("execution", self.execution, EXECUTIONS)
        _check_choice("float32", self.float32, FLOAT32S, slips.FLOAT32S)
        self._set("masters", None if self.masters == "none" else self.masters)
        _check_choice("masters", self.masters, MASTERS, slips.MASTERS)
        _check_choice("slots", self.slots, SLOTS, slips.SLOTS)
        self._set("keep", tuple(sorted(set(_names("keep", self.keep)))))
        for name in ("allow", "deny"):
            ops = {op_table.resolve(op) for op in _names(name, getattr(self, name))}
            self._set(name, tuple(sorted(ops)))
        self._check_lists()
        self._check_level()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen; this is its constructor

    def _check_lists(self) -> None:
        both = sorted(set(self.allow) & set(self.deny))
        if both:
            raise PolicyError(
                f"{', '.join(map(repr, both))} is in both allow and deny; an op has one rule.\n"
                f"Hint: leave it in one list, for example deny={both!r}."
            )
        if self.lists == "native" and (self.allow or self.deny):
            raise PolicyError(
                "lists='native' intercepts nothing, so allow and deny cannot be honoured "
                f"(allow={list(self.allow)!r}, deny={list(self.deny)!r}).\n"
                "Hint: start from a list set, lists='torch', and keep allow and deny."
            )

    def _check_level(self) -> None:
        """Refuse settings that would have no effect at this level."""
        if self.level == "O0" and self.output_dtype != "float32":
            raise PolicyError(
                f"output_dtype={self.output_dtype!r} at O0, where a model returns float32.\n"
                f"Hint: Policy('O1', 'bfloat16', output_dtype={self.output_dtype!r})"
            )
        if self.level != "O2" and self.masters != "float32":
            raise PolicyError(
                f"masters={self.masters!r} at {self.level}, where parameters are float32 and need no "
                f"masters.\nHint: Policy('O2', 'bfloat16', masters={self.masters!r})"
            )
        if self.level != "O2" and self.slots != "float32":
            raise PolicyError(
                f"slots={self.slots!r} at {self.level}, where the optimizer is left as it is, and its "
                f"slots are float32.\nHint: Policy('O2', 'bfloat16', slots={self.slots!r})"
            )
        if self.dtype == "float16" and self.masters in _WHY_NOT_IN_FLOAT16:
            raise PolicyError(
                f"masters={self.masters!r} in float16: {_WHY_NOT_IN_FLOAT16[self.masters]}.\n"
                f"Hint: Policy('O2', 'bfloat16', masters={self.masters!r}); or masters='float32'"
            )

    @property
    def compute_dtype(self) -> str:
        """The dtype of allow-listed ops: the low precision, or float32 at O0."""
        return self.dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype in which values of parameters are kept from step to step."""
        is_low = self.level == "O2" and self.masters in ("stochastic", None)
        return self.dtype if is_low else "float32"

    @property
    def needs_scaling(self) -> bool:
        """Whether small gradients would underflow without loss scaling: only in float16."""
        return self.compute_dtype == "float16"

    @property
    def op_list(self) -> OpList:
        """The list set of this level and dtype, with the changes by ``allow`` and ``deny``."""
        if self.lists == "native":
            raise PolicyError(
                "With lists='native' the framework decides op by op; there is no list to look at.\n"
                "Hint: Policy(lists='torch') has the lists of CUDA autocast on every backend."
            )
        if self.level == "O0":
            raise PolicyError(
                "At O0 every op runs in float32; there is no list to look at.\n"
                f"Hint: Policy('O1', 'bfloat16', lists={self.lists!r}).op_list"
            )
        base = op_table.op_list(self.lists, self.level, self.dtype)
        allow, deny = frozenset(self.allow), frozenset(self.deny)
        # O2 is low precision everywhere except where the lists say otherwise.
        follows = self.level == "O2" and base.unlisted == "full"
        return OpList(
            base.allow - deny | allow,
            base.deny - allow | deny,
            base.promote - allow - deny,
            "follow" if follows else base.unlisted,
        )

    def category(self, op: str) -> Category:
        """The rule for ``op`` (any name that ``allow`` takes): "allow", "deny" or "promote".

        Ops that follow their inputs are also "promote". At O0 every op is "deny": float32.
        """
        name = op_table.resolve(op)
        return "deny" if self.level == "O0" else self.op_list.category(name)

    def native_rules(self, namespace: str) -> Mapping[str, Category]:
        """The rule for every framework spelling in ``namespace`` (see ``op_table.native_names``).

        A spelling may stand for several canonical ops (TensorFlow's ``MatMul`` for ``matmul`` and
        ``linear``). The user's own entries come first, deny before allow; then the category of the
        op that owns the spelling.
        """
        rules: dict[str, Category] = {}
        for spelling, candidates in op_table.native_names(namespace).items():
            if self.level == "O0" or not set(candidates).isdisjoint(self.deny):
                rules[spelling] = "deny"
            elif not set(candidates).isdisjoint(self.allow):
                rules[spelling] = "allow"
            else:
                rules[spelling] = self.category(candidates[0])
        return rules

    def own_rules(self, prefix: str) -> Mapping[str, Category]:
        """The rules for listed ops outside of the op table, by their names without ``prefix``."""
        listed = (op for op in (*self.allow, *self.deny) if op_table.own_prefix(op) == prefix)
        return {op.removeprefix(f"{prefix}:"): self.category(op) for op in listed}

    def replace(self, **changes: Any) -> Policy:
        """A copy with the named fields changed."""
        _check_fields(sorted(changes), "policy.replace")
        return replace(self, **changes)

    @classmethod
    def parse(cls, text: str | Policy) -> Policy:
        """A policy from its short form, ``"O1"`` or ``"O2:bfloat16"``, or a framework's spelling.

        Returns a Policy unchanged, so every argument that takes a policy may be such a string.
        """
        if isinstance(text, Policy):
            return text
        if not isinstance(text, str):
            passed = f"{type(text).__name__} ({text!r:.80})"
            if isinstance(text, type):
                passed = f"{text.__module__}.{text.__qualname__}"
            found = meant(text, SPELLINGS)
            hint = "policy='O1' or policy=Policy('O1', 'bfloat16')"
            if found is not None:
                hint = f"policy={str(_SHORT_FORMS[found])!r}"
            msg = f"A policy is a Policy or a string, not {passed}.\n"
            raise ArgumentTypeError(f"{msg}Hint: {hint}")
        if text in _SHORT_FORMS:
            return _SHORT_FORMS[text]
        level, _, dtype = text.partition(":")
        if level in LEVELS and dtype:
            whole = f"{level}:{meant(dtype, LOW_DTYPES, slips.DTYPES)}"
            if whole in _SHORT_FORMS:
                msg = f"Passed dtype={dtype!r}; allowed are {listed(LOW_DTYPES)}.\n"
                raise PolicyError(msg + f"Hint: policy={whole!r}")
            return cls(cast(Level, level), dtype)  # which says what is allowed
        msg = f"Cannot read the policy {text!r}; allowed are {listed(_SHORT_FORMS)}.\n"
        raise PolicyError(msg + did_you_mean(text, _SHORT_FORMS, _SLIPS, _other_words(text)))

    @classmethod
    def auto(cls, device: object = None) -> Policy:
        """The policy that suits ``device``, with the framework that this process has imported.

        ``"O1:bfloat16"`` on TPUs, NPUs and similar devices, on GPUs of compute capability 8 and above,
        and on CPUs with AMX or AVX512-BF16. ``"O1"`` in float16 on GPUs of 7.x. ``"O0"`` on other
        devices, and if the framework fails to compute a small product in that dtype. The product
        initialises the device; configure it beforehand. The reason is logged (logger "ampbridge",
        INFO), and ``doctor()`` shows it.

        Args:
            device: ``"cpu"``, ``"cuda"``, ``"gpu:1"``, ``"tpu"``, ``"xpu"`` or a torch.device. The default
                is a GPU, TPU or other accelerator if the framework has one, otherwise the CPU.

        Raises:
            BackendNotFoundError: if no framework is imported, or several that give different policies.
            ArgumentError: if the framework has no such device here.
        """
        from ampbridge.policies.hardware import recommend  # it asks backends, which ask policies

        return recommend(device).policy

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, one key for each."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "masters": self.masters or "none"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """The policy from the result of ``to_dict``.

        Raises:
            PolicyError, ArgumentTypeError: for unknown keys and invalid values.
        """
        if not isinstance(data, Mapping):
            msg = f"A policy is described by a dict, not {data!r:.100}.\n"
            raise ArgumentTypeError(msg + "Hint: Policy.from_dict(policy.to_dict())")
        _check_fields(data, "Policy.from_dict")
        return cls(**data)

    def to_native(self, framework: str, *, drop: Sequence[str] = ()) -> Any:
        """The equivalent objects of ``framework``, for code without ampbridge.

        * "torch": a ``torch.autocast`` region, for CUDA if it is available. On CPUs torch has lists of
          its own; a warning says so.
        * "tensorflow": a ``keras.DTypePolicy``. Keras casts by layers, which is nearest to O2 with
          TensorFlow's lists.
        * "paddle": ``{"auto_cast": ..., "decorate": ...}``, the arguments of Paddle's functions.
          ``decorate`` is None if the policy does not need it. Names in lists are Paddle's.

        The framework does not cast the outputs of the model.

        Args:
            drop: fields that may be lost, or kept only in part.

        Raises:
            ArgumentError: for a framework without such objects.
            UnsupportedError: if the framework does not support a field; the message names these fields.
        """
        # it asks backends, which ask policies
        from ampbridge.policies.native_lists import to_native

        return to_native(self, framework, drop)

    @classmethod
    def from_native(cls, native: Any) -> Policy:
        """The policy that is equivalent to a framework's own object, such as ``to_native`` returns.

        Raises:
            BackendNotFoundError, ArgumentTypeError: if ``native`` is not such an object.
            UnsupportedError: if no policy is equivalent.
        """
        from ampbridge.policies.native_lists import from_native

        return from_native(native)

    def __str__(self) -> str:
        """The short form, if ``parse`` reads this policy from it; otherwise the code."""
        short = self.level if self.level == "O0" else f"{self.level}:{self.dtype}"
        return short if _SHORT_FORMS[short] == self else repr(self)

    def __repr__(self) -> str:
        shown = [repr(self.level)] if self.level == "O0" else [repr(self.level), repr(self.dtype)]
        for f in fields(self)[2:]:
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={list(value) if isinstance(value, tuple) else value!r}")
        return f"Policy({', '.join(shown)})"


_FIELDS = tuple(f.name for f in fields(Policy))


def as_argument(policy: Policy) -> str:
    """The code of an argument: the short form in quotes, if there is one."""
    return f"amp.{policy!r}" if str(policy) == repr(policy) else repr(str(policy))


def _check_choice(
    name: str,
    value: object,
    allowed: tuple[str | None, ...],
    known_slips: Mapping[str, str] = slips.NONE,
) -> None:
    if (value is None or isinstance(value, str)) and value in allowed:
        return
    words = {each or "none": each for each in allowed}
    found = meant(value, words, known_slips)
    if found is not None:
        hint = f"{name}={words[found]!r}"
    elif name == "masters" and meant(value, LOW_DTYPES, slips.DTYPES):
        hint = (
            "masters=None, which has nothing beside the 16-bit weights; or, for bfloat16, "
            "masters='stochastic', which rounds their updates by chance"
        )
    else:
        hint = _other_words(str(value)) if name in ("level", "dtype") else "help(amp.Policy)"
    in_files = " ('none' in files)" if None in allowed else ""
    raise PolicyError(
        f"Passed {name}={value!r}; allowed are {listed(allowed)}{in_files}.\nHint: {hint}"
    )


def _other_words(text: str) -> str:
    """The hint for who wrote a whole policy in place of a part, or apex's own level O3."""
    if text.startswith(("Policy(", "amp.Policy(")):
        return f"policy={text}, without quotes"
    if text.casefold() == "o3":
        return "Policy('O2', masters=None), which apex calls O3."
    part, _, rest = text.partition(":")
    level, dtype = meant(part, LEVELS, slips.LEVELS), meant(rest, LOW_DTYPES, slips.DTYPES)
    word = text.casefold().rpartition(":")[2]
    field = slips.FIELDS.get(word)
    if field in _FIELDS:
        at = "O2" if field == "masters" else "O1"
        return f"Policy({at!r}, 'bfloat16', {field}={word!r})"
    whole = meant(f"{level}:{dtype}", _SHORT_FORMS) if level and dtype else meant(text, SPELLINGS)
    return "help(amp.Policy)" if whole is None else repr(_SHORT_FORMS[whole])


def _names(field_name: str, value: Iterable[str]) -> tuple[str, ...]:
    """``value`` as a tuple of strings; a lone string is a mistake, not a list of letters."""
    if isinstance(value, str):
        msg = f"{field_name} takes a list of names, not the string {value!r}.\n"
        raise ArgumentTypeError(msg + f"Hint: {field_name}=[{value!r}]")
    try:
        names = tuple(value)
    except TypeError:
        names = (cast(str, value),)  # refused below
    for name in names:
        if not isinstance(name, str):
            msg = f"{field_name} takes names, not {name!r} of type {type(name).__name__}.\n"
            raise ArgumentTypeError(msg + f"Hint: {field_name}={_named(field_name, name)!r}")
    return names


def _named(field_name: str, thing: Any) -> list[str]:
    """What names ``thing``, which was passed itself: a layer, a class, a function; empty for None."""
    if thing is None:
        return []
    if field_name == "keep":
        return [getattr(thing, "__name__", type(thing).__name__)]
    name = getattr(thing, "__name__", "softmax")
    is_known = name in op_table.ops() or not hasattr(thing, "__qualname__")
    return [name if is_known else f"{thing.__module__}:{thing.__qualname__}"]


def _check_fields(names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in _FIELDS:
            hint = did_you_mean(name, _FIELDS, slips.KEYS, "help(amp.Policy)")
            msg = f"{where} has no field {name!r}; allowed are {listed(_FIELDS)}.\n"
            raise PolicyError(msg + hint)


# Created in advance: torch.compile can trace a lookup, but not the creation of a policy.
Policy.__init__ = told_of("Policy")(Policy.__init__)  # type: ignore[method-assign]

_SLIPS = {**slips.LEVELS, **slips.DTYPES}

_SHORT_FORMS: Mapping[str, Policy] = {
    text: Policy(cast(Level, level), dtype)
    for text, (level, dtype) in {
        "O0": ("O0", "float32"),
        "O1": ("O1", "float16"),
        "O2": ("O2", "float16"),
        **{f"{lv}:{dt}": (lv, dt) for lv in ("O1", "O2") for dt in LOW_DTYPES},
        **SPELLINGS,
    }.items()
}
