"""What programs read from the command line: argparse, click, absl, fire, parsers of dataclasses."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ampbridge_port.reader.config_files import config_of_python, load, passed_to, scope_of
from ampbridge_port.reader.operations import of_table
from ampbridge_port.reader.site import Site, made_by
from ampbridge_port.reader.source import last_name, module_of, text_of
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
    Model,
    Passed,
    Scope,
    Unknown,
    Value,
    is_plain,
)

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine

CONFIGURES = re.compile(
    r"(?:^|_)(?:config|cfg|conf|yaml|yml|json|hparams|params|opt|options|flagfile)s?(?:$|_)", re.I
)


NOT_CONFIGURES = re.compile(r"dir|folder|out|save|tokenizer|model_config|name$|opts?_level", re.I)


def field_default(machine: Machine, default: Value, node: ast.AST) -> Value:
    """The value of a dataclass' field; ``field(default=..., default_factory=...)`` too."""
    if not isinstance(default, Made) or default.qualified.rpartition(".")[2] not in FIELDS:
        return default
    given = {each.name: each.value for each in default.event.passed}
    if "default" in given:
        return given["default"]
    factory = given.get("default_factory", given.get("factory"))
    if factory is not None:
        return machine.call(factory, (), node, scope_of(machine, node))
    return given.get("", Unknown(default.event.node))


FIELDS = ("field", "Field", "attrib", "ib")
"""Those of dataclasses, pydantic and attrs."""


def _option(
    machine: Machine, dest: str, flag: str, given: Mapping[str, Value], node: ast.AST
) -> Value:
    """The value of an option of the command line."""
    word = _data(given.get("action"))
    default, domain = given.get("default"), _known(given.get("choices"))
    if word in ("store_true", "store_false") or _data(given.get("is_flag")):
        default = default or Known(word == "store_false")
    if _takes_file(dest, flag, default):
        if machine.config_file:
            return Known(machine.config_file)
        if not _data(default):  # it has to be passed, to be of use
            return Unknown(node, ("args", dest))
    if "required" in given and default is None and machine.truth(given["required"])[0]:
        if not domain:
            return Unknown(node, ("args", dest))
        module = module_of(node)
        key, text = f"{module.file}: --{dest}", f"args.{dest}"
        return machine.option(key, text, "", module.place(node), domain[0], *domain)
    if word in ("store_true", "store_false"):
        domain = [True, False]
    if word == "store_const" and "const" in given:
        domain = [_data(given["const"])]
    default = default or Known(None)
    kind = given.get("type")
    if isinstance(_data(default), str) and isinstance(kind, Library):
        convert = {"builtins.int": int, "builtins.float": float}.get(kind.qualified, str)
        with contextlib.suppress(ValueError):
            default = Known(convert(_data(default)))
    return _changeable(machine, node, dest, f"args.{dest}", default, *domain, flag=flag or dest)


def _changeable(
    machine: Machine,
    node: ast.AST,
    name: str,
    text: str,
    default: Value,
    *domain: Any,
    flag: str = "",
) -> Value:
    """A default that the command line may change; what is no plain value stays."""
    if not is_plain(default):
        return default
    module = module_of(node)
    domain = (True, False) if isinstance(default.data, bool) else domain
    by = f"the command line's {flag or f'--{name}'}"
    key = f"{module.file}: --{name}"
    return machine.option(key, text, by, module.place(node), default.data, *domain)


def _data(value: Value | None) -> Any:
    return value.data if isinstance(value, Known) else None


def _known(values: Value | None) -> list[Any]:
    items = values.items if isinstance(values, Items) else []
    return [each.data for each in items if isinstance(each, Known)]


def _takes_file(dest: str, flag: str, default: Value | None) -> bool:
    """Whether an option is the one that names the configuration."""
    is_text = default is None or (is_plain(default) and isinstance(default.data, str | None))
    named = CONFIGURES.search(dest) and not NOT_CONFIGURES.search(dest)
    return flag == "-c" or bool(is_text and named)


def parser_of(site: Site) -> Value:
    parents = site.get("parents")
    made = Model("parser", {"options": {}})
    for each in parents.items if isinstance(parents, Items) else ():
        if isinstance(each, Model):
            made.state["options"] |= each.state["options"]
    return made


def add_argument(site: Site) -> Value:
    parser = site.receiver
    assert isinstance(parser, Model)
    options, given = parser.state["options"], site.keywords
    flags = [each.data for each in site.positional if isinstance(_data(each), str)]  # type: ignore[attr-defined]
    longest = max(flags, key=len, default="")
    long = next((f for f in flags if f.startswith("--")), longest)
    name = str(_data(given.get("dest")) or long.lstrip("-").replace("-", "_"))
    if not name:
        return site.unknown()
    flag = "-c" if "-c" in flags and not re.search("check|cpu|class|clip", name) else long
    options[name] = _option(site.machine, name, flag, given, site.node)
    if flags and not flags[0].startswith("-") and "default" not in given and "nargs" not in given:
        is_file = site.machine.config_file and CONFIGURES.search(name)
        unknown = Unknown(site.node, ("args", name))
        options[name] = Known(site.machine.config_file) if is_file else unknown
    if _data(given.get("nargs")) in ("+", "*", "...") and "default" not in given:
        is_file = site.machine.config_file and _data(options[name]) == site.machine.config_file
        options[name] = Items("list", [options[name]]) if is_file else Known(None)
    return Instance(None, {"dest": Known(name)})


def set_defaults(site: Site) -> Value:
    parser = site.receiver
    assert isinstance(parser, Model)
    given = dict(site.keywords)
    for value in site.positional:
        given |= value.items if isinstance(value, Dictionary) else {}
    options = parser.state["options"]
    for name, value in given.items():
        held = options.get(name)
        if isinstance(held, Known) and isinstance(value, Known) and value.place is None:
            for option in held.options:  # the command line still changes it
                option.default = value.data
                value = Known(site.machine.assumed.get(option.key, value.data), held.options)
        options[name] = value
    return Known(None)


def parse_args(site: Site) -> Value:
    parser = site.receiver
    assert isinstance(parser, Model)
    namespace = site.get("namespace", 1)
    made = namespace if isinstance(namespace, Instance) else Instance(None)
    options = {k: v for k, v in parser.state["options"].items() if k not in made.attributes}
    made.attributes |= options
    if site.name in ("parse_known_args", "parse_known_intermixed_args"):
        return Items("tuple", [made, Items("list", [], whole=False)])
    return made


def same_parser(site: Site) -> Value:
    """A group of arguments, or the parser of a subcommand, belongs to its parser."""
    assert site.receiver is not None
    return site.receiver


def dataclass_parser(site: Site) -> Value:
    given = site.get("dataclass_types", 0)
    classes = given.items if isinstance(given, Items) else [given] if given is not None else []
    return Model("dataclasses", {"classes": classes})


def parsed_dataclasses(site: Site) -> Value:
    assert isinstance(site.receiver, Model)
    machine = site.machine
    table: Value = Dictionary({})
    if machine.config is not None:
        table = passed_to(machine)
    elif site.name in ("parse_json_file", "parse_yaml_file"):
        table = load(site, site.get("json_file", 0))
    return Items(
        "tuple", [_dataclass_of(site, cls, table) for cls in site.receiver.state["classes"]]
    )


def _dataclass_of(site: Site, cls: Value, table: Value) -> Value:
    machine = site.machine
    items = table.items if isinstance(table, Dictionary) else {}
    if isinstance(cls, Class):
        takes_any = bool(cls.libraries())
        passed = [Passed(v, site.node, k) for k, v in items.items() if k in cls.fields or takes_any]
        for name, default in cls.fields.items():
            if name not in items and isinstance(default, (Known, Made)):
                node, value = field_node(cls, name), field_default(machine, default, site.node)
                value = _changeable(machine, node, name, f"{cls.name}.{name}", value)
                passed.append(Passed(value, node, name))
        return machine.instance(cls, tuple(passed), site.node, site.scope)
    if isinstance(cls, Library):
        passed = [Passed(v, site.node, str(k)) for k, v in items.items()]
        return made_by(machine, cls.qualified, tuple(passed), site.node)
    return site.unknown()


def field_node(cls: Class, name: str) -> ast.AST:
    """Where a field of a dataclass is declared."""
    nodes = (node for each in cls.lineage() for node in each.node.body)
    declared = (n for n in nodes if isinstance(n, ast.AnnAssign) and last_name(n.target) == name)
    return next(declared, cls.node)


def environment(site: Site) -> Value:
    name, default = site.text("", 0), site.get("default", 1) or Known(None)
    if name is None:
        return site.unknown()
    if not is_plain(default):
        return default
    place = module_of(site.node).place(site.node)
    by = f"the environment's {name}"
    return site.machine.option(f"${name}", text_of(site.node), by, place, default.data)


def made_with_defaults(site: Site) -> Value:
    """``tyro.cli(Class)``, ``fire.Fire(main)``: the command line may change each default."""
    function = site.get("", 0)
    if isinstance(function, Class):
        return _dataclass_of(site, function, Dictionary({}))
    if not isinstance(function, (Function, Bound)):
        return site.unknown()
    inner = function.function if isinstance(function, Bound) else function
    passed = _by_default(site.machine, inner, site) if isinstance(inner, Function) else []
    return site.machine.call(function, passed, site.node, site.scope)


def _by_default(machine: Machine, function: Function, site: Site) -> list[Passed]:
    """The arguments of a function by the configuration, where it has them, and by their defaults."""
    arguments = [*function.node.args.args, *function.node.args.kwonlyargs]
    config, items = machine.config, {}
    if config is not None and {e.arg for e in arguments} & config.keys():
        machine.config_used = True
        items = {k: of_table(v, config.place_of(k)) for k, v in config.items()}
    passed = []
    for each in arguments:
        default = function.defaults.get(each.arg)
        if each.arg in items:
            value = items[each.arg]
            cls = _annotated(machine, each, function.scope)
            if isinstance(value, Dictionary) and cls is not None:
                if isinstance(default, Instance):
                    value = Dictionary({**default.attributes, **value.items})
                value = _dataclass_of(site, cls, value)
        elif machine.config_file and _takes_file(each.arg, "", default):
            value = Known(machine.config_file)
        elif is_plain(default):
            value = _changeable(machine, each, each.arg, each.arg, default)
        else:
            continue
        passed.append(Passed(value, each, each.arg))
    return passed


def lightning_cli(site: Site, cls: Class | None) -> Value:
    """Lightning's CLI makes a Trainer of the ``trainer`` section, over the defaults that the program sets."""
    machine = site.machine
    usual = site.get("trainer_defaults")
    settings_of = dict(usual.items) if isinstance(usual, Dictionary) else {}
    adds = cls.find("add_arguments_to_parser") if cls is not None else None
    if adds is not None:
        parser = Model("parser", {"options": {}})
        own = Instance(cls, node=site.node)
        machine.call(Bound(adds, own), (Passed(parser, site.node),), site.node, site.scope)
        for name, value in parser.state["options"].items():
            if name.startswith("trainer."):
                settings_of[name.removeprefix("trainer.")] = value
    if machine.config is not None:
        machine.config_used = True
        section = of_table(machine.config.table("trainer"), machine.config.place)
        settings_of |= section.items if isinstance(section, Dictionary) else {}
    passed = tuple(Passed(value, site.node, str(name)) for name, value in settings_of.items())
    made_by(machine, "lightning.pytorch.Trainer", passed, site.node)
    for each in (*site.positional, *site.keywords.values()):
        if isinstance(each, Class):
            made = machine.instance(each, (), site.node, site.scope)
            machine.run_methods(made, site.node, site.scope)
    return Instance(None)


def _annotated(machine: Machine, parameter: ast.arg, scope: Scope) -> Class | None:
    """The class that a parameter is annotated with."""
    found = machine.value(parameter.annotation, scope) if parameter.annotation is not None else None
    return found if isinstance(found, Class) else None


def define_flag(site: Site) -> Value:
    """Absl's ``flags.DEFINE_...(name, default, help)``."""
    name = site.text("name", 0)
    default = site.get("default", 1)
    if name is None:
        return site.unknown()
    given: dict[str, Value] = {"default": default} if default is not None else {}
    if site.name.endswith("DEFINE_enum"):
        values = site.get("enum_values", 2)
        given |= {"choices": values} if values is not None else {}
    if "DEFINE_config" in site.name:
        path = Known(site.machine.config_file) if site.machine.config_file else default
        found = config_of_python(site, path)
        site.machine.flags[name] = found
        return found
    value = _option(site.machine, name, f"--{name}", given, site.node)
    if ("multi" in site.name or site.name.endswith("list")) and isinstance(_data(value), str):
        value = Items("list", [value])
    site.machine.flags[name] = value
    return Instance(None, {"value": value, "default": value})
