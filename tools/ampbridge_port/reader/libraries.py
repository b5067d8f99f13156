"""What functions of libraries give that programs read their settings with.

Each is a function of a ``Site``, in a table by its qualified name. What is in no table is noted as an
event, and gives an object of which nothing more is known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ampbridge_port.reader import built_in, calling, command_line, config_files, gin, operations
from ampbridge_port.reader.dialects import is_known
from ampbridge_port.reader.site import Site, made_by
from ampbridge_port.reader.source import module_of, text_of
from ampbridge_port.reader.values import (
    Bound,
    Class,
    Dictionary,
    Function,
    Instance,
    Items,
    Known,
    Library,
    Made,
    Method,
    Model,
    Passed,
    Scope,
    Super,
    Unknown,
    Value,
    qualified_of,
)

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine


def turns_of(machine: Machine, over: Value, node: Any) -> Value | None:
    """How many turns a loop takes, where what it goes over says so."""
    if isinstance(over, Model) and over.kind == "range":
        stop: Value = over.state["stop"]
        return stop
    if isinstance(over, Model) and over.kind in ("enumerate", "zip"):
        found = (turns_of(machine, each, node) for each in over.state["over"])
        return next(filter(None, found), None)
    if isinstance(over, Items) and over.whole and len(over.items) > 1:
        return Known(len(over.items))
    if isinstance(over, Made) and over.qualified.endswith("islice"):
        counts = [each.value for each in over.event.passed[1:2]]
        return counts[0] if counts else None
    if re.search(r"micro|chunk|split|accum", f"{text_of(node.iter)} {text_of(node.target)}", re.I):
        return over
    return None


def attribute(machine: Machine, held: Library, name: str, node: ast.AST) -> Value:
    """``library.name``."""
    qualified = f"{held.qualified}.{name}"
    if qualified == "sys.argv":
        given = [Known(machine.config_file)] if machine.config_file else []
        return Items("list", [Known(machine.finder.script.file), *given], whole=False)
    if qualified == "sys.modules":
        return Unknown(node)
    if held.qualified.endswith("flags.FLAGS") and name in machine.flags:
        return machine.flags[name]
    if name == "__version__":
        return Unknown(node, (held.qualified, name))
    return Library(qualified)


def made_attribute(machine: Machine, held: Made, name: str, node: ast.AST) -> Value:
    """An attribute of what a library's call gave."""
    last = held.qualified.rpartition(".")[2]
    if name == "type" and last in ("device", "get_default_device"):
        first = held.event.passed[0].value if held.event.passed else Unknown(node)
        if isinstance(first, Known) and isinstance(first.data, str):
            return Known(first.data.partition(":")[0], first.options)
        return Known("cuda")
    if name in ("module", "_orig_mod", "_layers", "_module") and held.event.passed:
        return held.event.passed[0].value
    for each in held.event.passed:
        if each.name == name:
            return each.value
    wrapped = held.event.passed[0].value if held.event.passed else None
    if isinstance(wrapped, Instance) and wraps(held):
        own = wrapped.cls.find(name) if wrapped.cls is not None else None
        if own is not None or name in wrapped.attributes:
            return machine.attribute(wrapped, name, node, config_files.scope_of(machine, node))
    return Method(held, name, node)


def wraps(made: Made) -> bool:
    """Whether a library's object stands for its first argument."""
    first = made.event.passed[0].value if made.event.passed else None
    return isinstance(first, (Instance, Made, Function, Bound))


def subscripted(held: Value, key: Known, node: ast.AST) -> Value:
    """``library[key]``."""
    if isinstance(held, Library) and held.qualified == "os.environ":
        return Unknown(node, ("environ", str(key.data)))
    if isinstance(held, (Class, Library)):
        return held  # a generic class: list[int], Optional[str]
    return Unknown(node, holds=held)


def called(
    machine: Machine, function: Library, passed: tuple[Passed, ...], node: ast.AST, scope: Scope
) -> Value:
    """What a call of a library's function gives."""
    name = function.qualified
    site = Site(machine, name, passed, node, scope)
    model = FUNCTIONS.get(name)
    if model is None and not name.startswith("builtins."):
        model = BY_LAST_NAME.get(name.rpartition(".")[2])
    if model is not None and not is_known(name):
        given = model(site)
        if given is not None:
            return given
    if name.startswith("builtins."):
        return built_in.built_in(site)
    parser = next((e.value for e in passed if isinstance(e.value, Model)), None)
    if parser is not None and parser.kind == "parser":  # it adds options of its own
        return parser
    passed = _with_what_is_said_at_launch(site)
    made = made_by(machine, name, passed, node)
    for each in passed:
        if isinstance(each.value, Dictionary) and not site.is_known and each.node is not node:
            operations.doubt(machine, each.value, node)
    calling.run_arguments(machine, passed, node, scope)
    _run_hooks(machine, name.rpartition(".")[2], passed, node, scope)
    return _given_back(site, made)


AT_LAUNCH: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "accelerate.Accelerator": (
        "mixed_precision",
        "accelerate launch --mixed_precision",
        ("fp16", "bf16", "no"),
    )
}
"""What whoever launches a program says of a call, where the program does not: parameter, how, and values."""


def _with_what_is_said_at_launch(site: Site) -> tuple[Passed, ...]:
    """The arguments of a call, with one that the launch decides."""
    parameter, how, values = AT_LAUNCH.get(site.name, ("", "", ()))
    if not parameter or site.get(parameter) is not None or any(each.star for each in site.passed):
        return site.passed
    place = module_of(site.node).place(site.node)
    said = site.machine.option(how, how, how, place, None, *values)
    return (*site.passed, Passed(said, site.node, parameter))


WRAPS = frozenset({
    "distributed_model", "distributed_optimizer", "distributed_scaler", "prepare", "setup",
    "decorate", "initialize", "compile", "DataParallel", "DistributedDataParallel",
    "FullyShardedDataParallel", "FSDP", "DDP", "prepare_model", "convert_sync_batchnorm",
    "convert_sync_batchnorm_", "to_static", "get_peft_model", "setup_module",
    "setup_optimizers", "unwrap_model", "deepcopy", "to", "cuda", "train", "eval", "cpu",
    "requires_grad_", "float", "to_device", "apply", "half", "bfloat16", "jit_compile", "tqdm",
    "prepare_data_loader", "setup_dataloaders", "setdefault",
})  # fmt: skip
"""Functions that give back what they are passed, or a wrapper of it."""


ON_ITSELF = frozenset({
    "to", "cuda", "train", "eval", "cpu", "requires_grad_", "float", "apply", "half",
    "bfloat16", "xpu", "npu", "double",
})  # fmt: skip


WRAPPERS = (
    "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDP", "DDP", "tqdm",
)  # fmt: skip
"""Of these the classes."""


def _given_back(site: Site, made: Made) -> Value:
    """Of a function that wraps: what it was passed."""
    last = site.name.rpartition(".")[2]
    if last not in WRAPS:
        return made
    models = [
        v for n, v in site.keywords.items() if n in ("model", "models", "optimizers", "optimizer")
    ]
    given: list[Value] = [
        v for v in (*site.positional, *models) if isinstance(v, (Instance, Made, Unknown, Items))
    ]
    if last in WRAPPERS:
        is_whole = bool(given) and isinstance(given[0], (Instance, Made))
        return made if is_whole else Unknown(site.node, holds=made)
    if last in ("initialize", "setup", "prepare", "decorate"):
        if len(given) == 1:
            return given[0]
        if last == "initialize" and site.name.startswith("deepspeed"):
            return Items("tuple", [made, *(site.unknown() for _ in range(3))])
        return Items("tuple", given) if given else made
    return given[0] if len(given) == 1 and not isinstance(given[0], Items) else made


HOOKS = frozenset({
    "fit", "train", "run", "main", "launch", "spawn", "start", "evaluate", "train_batch",
    "learn",
})  # fmt: skip


def _run_hooks(
    machine: Machine, name: str, passed: Sequence[Passed], node: ast.AST, scope: Scope
) -> None:
    """A library trains an object of the program: it calls its methods."""
    for each in passed if name in HOOKS else ():
        machine.run_methods(each.value, node, scope)


def method_called(
    machine: Machine, method: Method, passed: tuple[Passed, ...], node: ast.AST, scope: Scope
) -> Value:
    """What a call of a method gives, of a plain value, a container or a library's object."""
    held, name = method.receiver, method.name
    site = Site(machine, name, passed, node, scope, held)
    match held:
        case Known():
            return built_in.of_plain_value(site, held)
        case Items():
            return built_in.of_items(site, held)
        case Dictionary():
            return built_in.of_dictionary(site, held)
        case Model():
            function = METHODS.get((held.kind, name))
            if function is not None:
                return function(site)
            return Unknown(node)
        case Super():
            return _of_super(site, held)
        case Instance():
            return _of_derived(site, held)
    if name == "__enter__":
        return machine.enter(held, node, scope)
    if name == "__exit__":
        if isinstance(held, Made) and held.event in machine.regions:
            machine.regions.remove(held.event)
        return Known(None)
    if name == "enter_context" and passed:
        return machine.enter(passed[0].value, node, scope)
    qualified = qualified_of(method)
    model = FUNCTIONS.get(qualified)
    if model is not None:
        given = model(Site(machine, qualified, passed, node, scope, held))
        if given is not None:
            return given
    if name in ("step", "minimize") and passed:
        _run_own_step(machine, passed[0].value, node, scope)
    event = machine.note(qualified, name, node, passed, held)
    calling.run_arguments(machine, passed, node, scope)
    of_trainer = held.event.passed if isinstance(held, Made) and name in HOOKS else ()
    _run_hooks(machine, name, (*passed, *of_trainer), node, scope)
    if isinstance(held, Made) and name in ON_ITSELF:
        return held
    if isinstance(held, Made) and name in WRAPS:
        return _given_back(Site(machine, qualified, passed, node, scope), Made(qualified, event))
    return Made(qualified, event)


def _run_own_step(machine: Machine, optimizer: Value, node: ast.AST, scope: Scope) -> None:
    """A scaler's step calls that of the optimizer, which the program may have written."""
    if isinstance(optimizer, (Instance, Made)):
        own = machine.attribute(optimizer, "step", node, scope)
        if isinstance(own, Bound):
            calling.call(machine, own, (), node, scope)


def _of_super(site: Site, held: Super) -> Value:
    """``super().name(...)`` of a library's class."""
    machine, of = site.machine, held.receiver
    if site.name == "compile" and isinstance(of, Instance):
        _keep_compiled(site, of)
    bases = held.cls.libraries()
    known = next((name for name in bases if is_known(name)), "")
    base = known or next(iter(bases), "")
    is_made = site.name == "__init__" and bool(known or (base and site.passed))
    if is_made and isinstance(of, Instance) and of.made is None:
        of.made = calling.derived(machine, of, base, site.passed, site.node)
        return Known(None)
    name = f"{base}.{site.name}" if base else ""
    machine.note(name, site.name, site.node, site.passed, of)
    return Unknown(site.node)


def _keep_compiled(site: Site, model: Instance) -> None:
    """Keras keeps what ``compile`` is passed."""
    model.attributes |= {k: v for k, v in site.keywords.items() if k in ("optimizer", "loss")}


def _of_derived(site: Site, held: Instance) -> Value:
    """A method that an object of the program has from a library's class."""
    machine, name = site.machine, site.name
    base = qualified_of(Method(held, name, site.node))
    machine.note(base, name, site.node, site.passed, held)
    if name == "compile":
        _keep_compiled(site, held)
    if name in HOOKS:
        machine.run_methods(held, site.node, site.scope)
    of_made = held.made.event.passed if held.made is not None else ()
    _run_hooks(machine, name, (*site.passed, *of_made), site.node, site.scope)
    calling.run_arguments(machine, site.passed, site.node, site.scope)
    if name in ON_ITSELF:
        return held
    if name in ("parameters", "named_parameters", "state_dict", "modules"):
        return Unknown(site.node, holds=held)
    return Unknown(site.node)


def decorated(machine: Machine, made: Made, value: Function, node: ast.AST) -> Value:
    """What a library's decorator makes of a function: it may open a region around it."""
    last = made.qualified.rpartition(".")[2]
    if made.qualified.endswith("hydra.main") or last == "hydra_main":
        return Bound(value, None, (Passed(config_files.of_hydra(machine, made), node),))
    if is_known(made.qualified) or last in ("no_grad", "inference_mode"):
        return replace(value, regions=(made, *value.regions))
    return value


def _import_module(site: Site) -> Value:
    name = site.text("name", 0)
    if name is None:
        return site.unknown()
    level = len(name) - len(name.lstrip("."))
    return site.machine.imported(name.lstrip("."), level, site.scope.module)


def _add_to_path(site: Site) -> Value:
    """``sys.path.append("core")`` and ``sys.path.insert(0, "core")``."""
    for each in site.positional[-1:]:
        if isinstance(each, Known) and isinstance(each.data, str):
            site.machine.finder.added[each.data] = None
    return Known(None)


def _partial(site: Site) -> Value:
    return Bound(site.positional[0], None, site.passed[1:]) if site.positional else site.unknown()


_GIVE_BACK = (
    *(f"os.path.{name}" for name in ("expanduser", "abspath", "realpath", "normpath")),
    *("numpy.dtype", "string.Template"),
)
"""Functions that are taken to give back their argument: of a template the names stay."""
FUNCTIONS: dict[str, Callable[[Site], Value | None]] = {
    **{f"{each}argparse.ArgumentParser": command_line.parser_of for each in ("", "config", "json")},
    "configargparse.ArgParser": command_line.parser_of,
    **dict.fromkeys(
        ("argparse.Namespace", "types.SimpleNamespace"), lambda site: Instance(None, site.keywords)
    ),
    "functools.partial": _partial,
    **dict.fromkeys(
        ("json.load", "json.loads"), lambda site: config_files.load(site, site.get("", 0))
    ),
    **dict.fromkeys(("sys.path.append", "sys.path.insert"), _add_to_path),
    **dict.fromkeys(
        ("os.getenv", "os.environ.get", "os.environ.setdefault"), command_line.environment
    ),
    "os.path.join": lambda site: built_in.joined(site, *site.positional),
    "pathlib.Path": lambda site: (
        built_in.joined(site, *site.positional) if site.positional else Known(".")
    ),
    **dict.fromkeys(_GIVE_BACK, lambda site: site.get("", 0)),
    **dict.fromkeys(
        ("copy.copy", "copy.deepcopy"),
        lambda site: operations.copied(site.positional[0]) if site.positional else None,
    ),
    "importlib.import_module": _import_module,
    **dict.fromkeys(("sys.exit", "os._exit"), lambda site: Library("an exit")),
    **dict.fromkeys(("hydra.utils.instantiate", "hydra.utils.call"), config_files.instantiate),
    **dict.fromkeys(
        ("fire.Fire", "tyro.cli", "jsonargparse.CLI", "typer.run"), command_line.made_with_defaults
    ),
    "typing.cast": lambda site: site.get("", 1),
    "contextlib.nullcontext": lambda site: Instance(None),
    "collections.defaultdict": lambda site: Dictionary({}),
    "collections.OrderedDict": lambda site: operations.dictionary_of(site.passed),
    "ast.literal_eval": built_in.eval_of,
    **{
        f"{keras}.optimizers.{name}": config_files.optimizer_of_keras
        for keras in ("keras", "tensorflow.keras", "tf_keras")
        for name in ("get", "deserialize")
    },
    **{f"gin.parse_config{more}": gin.load for more in ("", "_file", "_files_and_bindings")},
    "hydra.core.config_store.ConfigStore.instance.store": config_files.store_config,
}


def _from_yaml(site: Site) -> Value | None:
    """``OmegaConf.load``, ``yaml.load``, ``toml.load``; None of others of such names."""
    if "OmegaConf" in site.name:
        return config_files.omega(site)
    loads = site.name.endswith(("yaml.load", "toml.load", "tomllib.load", "tomli.load"))
    return config_files.load(site, site.get("", 0)) if loads else None


_OF_OMEGA = (
    "create", "load", "merge", "structured", "to_container", "to_object", "from_cli",
    "from_dotlist", "set_struct", "set_readonly", "resolve", "register_new_resolver",
    "unsafe_merge", "masked_copy", "save",
)  # fmt: skip
_FLAGS = (
    "string", "bool", "boolean", "integer", "float", "enum", "list", "config_file", "config_dict",
    "multi_string",
)  # fmt: skip
_LOADS = ("load_cfg", "safe_load", "full_load", "unsafe_load", "load_yaml")
_PARSERS = ("HfArgumentParser", "PdArgumentParser", "TrlParser")

BY_LAST_NAME: Mapping[str, Callable[[Site], Value | None]] = {
    **dict.fromkeys(operations.DICTIONARIES, config_files.config_dictionary),
    "LightningCLI": lambda site: command_line.lightning_cli(site, None),
    **dict.fromkeys(_PARSERS, command_line.dataclass_parser),
    **dict.fromkeys(_LOADS, lambda site: config_files.load(site, site.get("", 0))),
    **dict.fromkeys(_OF_OMEGA, _from_yaml),
    **{f"DEFINE_{kind}": command_line.define_flag for kind in _FLAGS},
}

_INTERMIXED = ("parse_intermixed_args", "parse_known_intermixed_args")
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group", "add_subparsers", "add_parser")
_INTO_DATACLASSES = (
    "parse_args_into_dataclasses", "parse_json_file", "parse_yaml_file",
    "parse_args_and_config", "parse_json_file_and_cmd_lines", "parse_yaml_file_and_cmd_lines",
)  # fmt: skip

METHODS: Mapping[tuple[str, str], Callable[[Site], Value]] = {
    ("parser", "add_argument"): command_line.add_argument,
    ("parser", "add"): command_line.add_argument,
    ("parser", "set_defaults"): command_line.set_defaults,
    **{
        ("parser", name): command_line.parse_args
        for name in ("parse_args", "parse_known_args", *_INTERMIXED)
    },
    **{("parser", name): command_line.same_parser for name in _GROUPS},
    **{("dataclasses", name): command_line.parsed_dataclasses for name in _INTO_DATACLASSES},
    ("file", "read"): config_files.read_file,
    ("file", "__enter__"): lambda site: site.receiver or site.unknown(),
}
