"""What programs read from the command line: argparse, click, absl, fire, parsers of dataclasses."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ampbridge_port.reader.config_files import config_of_python, load, scope_of
from ampbridge_port.reader.operations import of_table
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
    Model,
    Passed,
    Scope,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine

CONFIGURES = re.compile(
    r"(?:^|_)(?:config|cfg|conf|yaml|yml|json|hparams|params|opt|options|flagfile)s?(?:$|_)", re.I
)


NOT_CONFIGURES = re.compile(r"dir|folder|out|save|tokenizer|model_config|name$|opts?_level", re.I)


def field_default(machine: Machine, default: Value, node: ast.AST) -> Value:
    """The value of a dataclass' field; ``field(default=..., default_factory=...)`` too."""
    if isinstance(default, Made) and default.qualified.rpartition(".")[2] in (
        "field",
        "Field",
        "attrib",
        "ib",
    ):
        given = {each.name: each.value for each in default.event.passed}
        if "default" in given:
            return given["default"]
        factory = given.get("default_factory", given.get("factory"))
        if factory is not None:
            return machine.call(factory, (), node, scope_of(machine, node))
        plain_default = [each.value for each in default.event.passed if not each.name]
        return plain_default[0] if plain_default else Unknown(default.event.node)
    return default


def click_option(machine: Machine, made: Made) -> tuple[str, Value]:
    words = [e.value.data for e in made.event.passed if not e.name and isinstance(e.value, Known)]
    names = [str(w).lstrip("-") for w in words if not str(w).startswith("-")]
    longest = max((str(w) for w in words), key=len, default="")
    dest = (names[0] if names else longest.lstrip("-").partition("/")[0]).replace("-", "_")
    given = {each.name: each.value for each in made.event.passed if each.name}
    return dest, _option(machine, dest, longest, given, made.event.node)


def exit_of(site: Site) -> Value:
    return Library("an exit")


def _option(
    machine: Machine, dest: str, flag: str, given: Mapping[str, Value], node: ast.AST
) -> Value:
    """The value of an option of the command line."""
    action = given.get("action")
    word = action.data if isinstance(action, Known) else ""
    default = given.get("default")
    if word in ("store_true", "store_false") or _is_flag(given, action):
        default = default or Known(word == "store_false")
    if word == "store_const":
        default = default or Known(None)
    module = module_of(node)
    if _takes_file(dest, flag, default):
        if machine.config_file:
            return Known(machine.config_file)
        if not isinstance(default, Known) or not default.data:  # it has to be passed, to be of use
            return Unknown(node, ("args", dest))
    if "required" in given and default is None and machine.truth(given["required"])[0]:
        allowed = given.get("choices")
        words = (
            [e.data for e in allowed.items if isinstance(e, Known)]
            if isinstance(allowed, Items)
            else []
        )
        if not words:
            return Unknown(node, ("args", dest))
        key, text = f"{module.file}: --{dest}", f"args.{dest}"
        return machine.option(key, text, "", module.place(node), words[0], *words)
    if default is None:
        default = Known(None)
    if not isinstance(default, Known):
        return default
    if not isinstance(default.data, (str, int, float, bool, type(None))):
        return default
    choices = given.get("choices")
    domain = (
        [e.data for e in choices.items if isinstance(e, Known)]
        if isinstance(choices, Items)
        else []
    )
    kind = given.get("type")
    if word in ("store_true", "store_false") or isinstance(default.data, bool):
        domain = [True, False]
    if word == "store_const" and isinstance(given.get("const"), Known):
        domain = [given["const"].data]  # type: ignore[attr-defined]
    data = default.data
    if isinstance(data, str) and isinstance(kind, Library):
        converted = {"builtins.int": int, "builtins.float": float}.get(kind.qualified)
        with contextlib.suppress(ValueError):
            data = converted(data) if converted is not None else data
    place = module.place(node)
    return machine.option(
        f"{module.file}: --{dest}",
        f"args.{dest}",
        f"the command line's {flag or dest}",
        place,
        data,
        *domain,
    )


def _is_flag(given: Mapping[str, Value], action: Value | None) -> bool:
    is_flag = given.get("is_flag")
    return isinstance(is_flag, Known) and bool(is_flag.data)


def _takes_file(dest: str, flag: str, default: Value | None) -> bool:
    """Whether an option is the one that names the configuration."""
    plain_text = default is None or (
        isinstance(default, Known) and isinstance(default.data, (str, type(None)))
    )
    if flag == "-c":
        return True
    return bool(plain_text and CONFIGURES.search(dest) and not NOT_CONFIGURES.search(dest))


def parser_of(site: Site) -> Value:
    parents = site.get("parents")
    made = Model("parser", {"options": {}, "defaults": {}})
    for each in parents.items if isinstance(parents, Items) else ():
        if isinstance(each, Model):
            made.state["options"] |= each.state["options"]
    return made


def add_argument(site: Site) -> Value:
    parser = site.receiver
    assert isinstance(parser, Model)
    flags = [
        each.data
        for each in site.positional
        if isinstance(each, Known) and isinstance(each.data, str)
    ]
    given = site.keywords
    longest = max(flags, key=len, default="")
    dest = given.get("dest")
    long = next((f for f in flags if f.startswith("--")), longest)
    name = dest.data if isinstance(dest, Known) else long.lstrip("-").replace("-", "_")
    if not name:
        return site.unknown()
    flag = "-c" if "-c" in flags and not re.search("check|cpu|class|clip", str(name)) else long
    parser.state["options"][str(name)] = _option(site.machine, str(name), flag, given, site.node)
    if flags and not flags[0].startswith("-") and "default" not in given and "nargs" not in given:
        if site.machine.config_file and CONFIGURES.search(str(name)):
            parser.state["options"][str(name)] = Known(site.machine.config_file)
        else:
            parser.state["options"][str(name)] = Unknown(site.node, ("args", str(name)))
    nargs = given.get("nargs")
    if isinstance(nargs, Known) and nargs.data in ("+", "*", "...") and "default" not in given:
        held = parser.state["options"][str(name)]
        is_file = isinstance(held, Known) and held.data == site.machine.config_file != ""
        parser.state["options"][str(name)] = Items("list", [held]) if is_file else Known(None)
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
        if (
            isinstance(held, Known)
            and held.options
            and isinstance(value, Known)
            and value.place is None
        ):
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


def get_default(site: Site) -> Value:
    assert isinstance(site.receiver, Model)
    return site.receiver.state["options"].get(site.text("", 0) or "", site.unknown())  # type: ignore[no-any-return]


def dataclass_parser(site: Site) -> Value:
    given = site.get("dataclass_types", 0)
    classes = given.items if isinstance(given, Items) else [given] if given is not None else []
    return Model("dataclasses", {"classes": classes})


def parsed_dataclasses(site: Site) -> Value:
    assert isinstance(site.receiver, Model)
    machine = site.machine
    table: Value = Dictionary({})
    if machine.config is not None:
        table = of_table(machine.config, machine.config.place)
        machine.config_used = True
    elif site.name in ("parse_json_file", "parse_yaml_file", "parse_dict"):
        table = (
            load(site, site.get("json_file", 0))
            if site.name != "parse_dict"
            else site.positional[0]
        )
    made: list[Value] = []
    for cls in site.receiver.state["classes"]:
        made.append(_dataclass_of(site, cls, table))
    return Items("tuple", made)


def _dataclass_of(site: Site, cls: Value, table: Value) -> Value:
    machine = site.machine
    items = table.items if isinstance(table, Dictionary) else {}
    if isinstance(cls, Class):
        passed = [Passed(v, site.node, k) for k, v in items.items() if _takes(cls, k)]
        for name, default in cls.fields.items():
            if name not in items and isinstance(default, (Known, Made)):
                value = field_default(machine, default, site.node)
                if isinstance(value, Known) and isinstance(
                    value.data, (str, int, float, bool, type(None))
                ):
                    module = module_of(cls.node)
                    domain = [True, False] if isinstance(value.data, bool) else []
                    value = machine.option(
                        f"{module.file}: --{name}",
                        f"{cls.name}.{name}",
                        f"the command line's --{name}",
                        module.place(field_node(cls, name)),
                        value.data,
                        *domain,
                    )
                passed.append(Passed(value, field_node(cls, name), name))
        return machine.instance(cls, tuple(passed), site.node, site.scope)
    if isinstance(cls, Library):
        passed = [Passed(v, site.node, str(k)) for k, v in items.items()]
        return made_by(machine, cls.qualified, tuple(passed), site.node)
    return site.unknown()


def field_node(cls: Class, name: str) -> ast.AST:
    for each in cls.lineage():
        for node in each.node.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
            ):
                return node
    return cls.node


def _takes(cls: Class, name: str) -> bool:
    return name in cls.fields or bool(cls.libraries())


def environment(site: Site) -> Value:
    name, default = site.text("", 0), site.get("default", 1)
    if name is None:
        return site.unknown()
    if (
        isinstance(default, Known) and isinstance(default.data, (str, int, float, type(None), bool))
    ) or default is None:
        place = module_of(site.node).place(site.node)
        data = default.data if isinstance(default, Known) else None
        return site.machine.option(
            f"${name}", text_of(site.node), f"the environment's {name}", place, data
        )
    return default


def made_with_defaults(site: Site) -> Value:
    """``tyro.cli(Class)``, ``fire.Fire(main)``: the command line may change each default."""
    function = site.get("", 0)
    machine = site.machine
    if isinstance(function, Library) or function is None:
        return site.unknown()
    if isinstance(function, Class):
        return _dataclass_of(site, function, Dictionary({}))
    if isinstance(function, (Function, Bound)):
        inner = function.function if isinstance(function, Bound) else function
        passed = []
        table = Dictionary({})
        if isinstance(inner, Function):
            module = module_of(inner.node)
            arguments = [*inner.node.args.args, *inner.node.args.kwonlyargs]
            if machine.config is not None and {e.arg for e in arguments} & machine.config.keys():
                machine.config_used = True
                table = Dictionary(
                    {k: of_table(v, machine.config.place_of(k)) for k, v in machine.config.items()}
                )
            for each in arguments:
                default = inner.defaults.get(each.arg)
                if each.arg in table.items:
                    value = table.items[each.arg]
                    cls = _annotated(machine, each, inner.scope)
                    if isinstance(value, Dictionary) and isinstance(cls, Class):
                        if isinstance(default, Instance):
                            value = Dictionary({**default.attributes, **value.items})
                        value = _dataclass_of(site, cls, value)
                    passed.append(Passed(value, each, each.arg))
                elif (
                    machine.config_file
                    and _takes_file(each.arg, "", default)
                    and CONFIGURES.search(each.arg)
                ):
                    passed.append(Passed(Known(machine.config_file), each, each.arg))
                elif isinstance(default, Known) and isinstance(
                    default.data, (str, int, float, bool, type(None))
                ):
                    domain = [True, False] if isinstance(default.data, bool) else []
                    flag = f"--{each.arg}"
                    value = machine.option(
                        f"{module.file}: {flag}",
                        each.arg,
                        f"the command line's {flag}",
                        module.place(each),
                        default.data,
                        *domain,
                    )
                    passed.append(Passed(value, each, each.arg))
        return machine.call(function, passed, site.node, site.scope)
    return site.unknown()


def lightning_cli(site: Site, cls: Class | None) -> Value:
    """Lightning's CLI makes a Trainer of the ``trainer`` section, over the defaults that the program sets."""
    machine = site.machine
    settings_of: dict[str, Value] = {}
    usual = site.get("trainer_defaults")
    settings_of |= (
        {str(k): v for k, v in usual.items.items()} if isinstance(usual, Dictionary) else {}
    )
    adds = cls.find("add_arguments_to_parser") if cls is not None else None
    if adds is not None:
        parser = Model("parser", {"options": {}, "defaults": {}})
        own = Instance(cls, node=site.node)
        machine.call(Bound(adds, own), (Passed(parser, site.node),), site.node, site.scope)
        for name, value in parser.state["options"].items():
            if name.startswith("trainer."):
                settings_of[name.removeprefix("trainer.")] = value
    if machine.config is not None:
        machine.config_used = True
        section = of_table(machine.config.table("trainer"), machine.config.place)
        settings_of |= section.items if isinstance(section, Dictionary) else {}
    passed = tuple(Passed(value, site.node, name) for name, value in settings_of.items())
    made_by(machine, "lightning.pytorch.Trainer", passed, site.node)
    for each in (*site.positional, *site.keywords.values()):
        if isinstance(each, Class):
            made = machine.instance(each, (), site.node, site.scope)
            machine.run_methods(made, site.node, site.scope)
    return Instance(None)


def _annotated(machine: Machine, parameter: ast.arg, scope: Scope) -> Value | None:
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
    if "multi" in site.name or site.name.endswith("list"):
        value = (
            Items("list", [value])
            if isinstance(value, Known) and isinstance(value.data, str)
            else value
        )
    site.machine.flags[name] = value
    return Instance(None, {"value": value, "default": value})
