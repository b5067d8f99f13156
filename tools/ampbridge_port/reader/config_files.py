"""What programs read from configuration files: YAML, JSON, OmegaConf, Hydra, yacs."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING

from ampbridge.errors import SourceError
from ampbridge_port.reader import operations, settings
from ampbridge_port.reader.modules import shown
from ampbridge_port.reader.site import Site, made_by
from ampbridge_port.reader.source import module_of
from ampbridge_port.reader.values import (
    Bound,
    Class,
    Dictionary,
    Instance,
    Items,
    Known,
    Library,
    Made,
    Model,
    ModuleOf,
    Passed,
    Scope,
    Unknown,
    Value,
)
from ampbridge_port.reading import Place

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine


def scope_of(machine: Machine, node: ast.AST) -> Scope:
    module = module_of(node)
    return machine.scopes.get(id(module)) or Scope(module, None)


def of_hydra(machine: Machine, made: Made) -> Value:
    """The configuration that ``@hydra.main(config_path=..., config_name=...)`` names."""
    if machine.config is not None:
        return _with_structured(machine, passed_to(machine), made.event.node)
    given = {each.name: each.value for each in made.event.passed}
    folder, name = given.get("config_path", Known(".")), given.get("config_name", Known("config"))
    if isinstance(folder, Known) and isinstance(name, Known):
        for end in (".yaml", ".yml", ""):
            path = os.path.normpath(os.path.join(str(folder.data or "."), f"{name.data}{end}"))
            found = loaded(machine, path, made.event.node)
            if found is not None:
                return _with_structured(machine, found, made.event.node)
    return Unknown(made.event.node, ("cfg",))


def passed_to(machine: Machine) -> Value:
    """The configuration that was passed, which is of use here."""
    machine.config_used = True
    table = machine.config
    assert table is not None
    return operations.of_table(table, table.place)


def _with_structured(machine: Machine, config: Value, node: ast.AST) -> Value:
    """A configuration over those that ``ConfigStore`` has for its ``defaults``."""
    if not isinstance(config, Dictionary):
        return config
    made = Dictionary({}, by_attribute=True)
    missing = config.items.pop(settings.HYDRA, None)
    for each in missing.items if isinstance(missing, Items) else ():
        if not isinstance(each, Items):
            continue
        group, name = (str(operations.plain(part)) for part in each.items)
        found = machine.structured.get((group, name))
        if found is not None:
            below = _as_config(Site(machine, "", (), node, scope_of(machine, node)), found)
            for key in reversed([key for key in group.split("/") if key]):
                below = Dictionary({key: below})
            operations.merge(made, operations.copied(below), node)
    operations.merge(made, config, node)
    return operations.nested(made)


def store_config(site: Site) -> Value:
    """``ConfigStore.instance().store(group="optimizer", name="adam", node=AdamConf)``."""
    node = site.get("node", 1)
    if node is not None:
        site.machine.structured[site.text("group") or "", site.text("name", 0) or ""] = node
    return Known(None)


def file_text(site: Site, path: str) -> Value:
    file = site.machine.finder.file(path, site.scope.module)
    if file is None:
        return site.unknown()
    name = path
    if site.machine.config is not None and _is_passed(site.machine, file):
        site.machine.config_used, name = True, site.machine.config_file
    try:
        text = file.read_text("utf-8", "replace")[: settings.LARGEST]
        return Known(text, place=Place(name, 1, 0, path))
    except OSError:
        return site.unknown()


def _is_passed(machine: Machine, file: os.PathLike[str] | str) -> bool:
    """Whether a file is the configuration that was passed."""
    return os.path.realpath(file) == os.path.realpath(machine.config_file)


def loaded(machine: Machine, path: str, node: ast.AST) -> Value | None:
    """A configuration file of the repository, or the one that was passed; None if it is not there."""
    if machine.config is not None and path == machine.config_file:
        return passed_to(machine)
    file = machine.finder.file(path, module_of(node))
    if file is None:
        return None
    if machine.config is not None and _is_passed(machine, file):
        return passed_to(machine)
    try:
        table = settings.read(shown(file))
    except SourceError:
        return None
    return operations.of_table(table, table.place)


def load(site: Site, of: Value | None) -> Value:
    """The table of a file that is open, named by its path, or given as its text."""
    machine = site.machine
    if isinstance(of, Model) and of.kind == "file":
        of = of.state["path"]
    if isinstance(of, Known) and isinstance(of.data, str):
        is_text = "\n" in of.data
        found = _parsed_text(machine, of) if is_text else loaded(machine, of.data, site.node)
        if found is not None:
            return operations.depending(found, of.options)
    elif machine.config is not None and not machine.config_used:
        return passed_to(machine)
    return Unknown(site.node, ("config",))


def _parsed_text(machine: Machine, of: Known) -> Value | None:
    """The table of a text; of the configuration that was passed, with what was overridden of it."""
    file = of.place.file if of.place is not None else "text.yml"
    if machine.config is not None and file == machine.config_file:
        return passed_to(machine)
    try:
        table = settings.parsed(of.data, file)
    except SourceError:
        return None
    return operations.of_table(table, table.place)


def read_file(site: Site) -> Value:
    assert isinstance(site.receiver, Model)
    path = site.receiver.state["path"]
    if isinstance(path, Known) and isinstance(path.data, str):
        return file_text(site, path.data)
    return site.unknown()


def omega(site: Site) -> Value | None:
    """``OmegaConf.name(...)``."""
    name, given = site.name.rpartition(".")[2], site.positional
    if name == "load":
        found = load(site, given[0] if given else None)
        return operations.nested(found) if isinstance(found, Dictionary) else found
    if name in ("create", "structured", "to_container", "to_object", "masked_copy"):
        return _as_config(site, given[0]) if given else Dictionary({}, by_attribute=True)
    if name in ("merge", "unsafe_merge"):
        made = Dictionary({}, by_attribute=True)
        for each in given:
            more = operations.copied(_as_config(site, each))
            if not isinstance(more, Dictionary) or more.rest is not None:
                operations.doubt(site.machine, made, site.node, of_files=True)
            operations.merge(made, more, site.node)
        return made
    if name in ("from_cli", "from_dotlist"):
        made = Dictionary({}, by_attribute=True)
        items = site.machine.items_of(given[0]) if given else None
        if items is None:  # whatever the command line says
            made.rest = site.unknown()
        for each in items or ():
            if isinstance(each, Known) and "=" in str(each.data):
                key, _, value = str(each.data).partition("=")
                operations.set_path(made, key.split("."), Known(value))
        return made
    if name in ("set_struct", "set_readonly", "register_new_resolver", "resolve", "save"):
        return Known(None)
    return None


def _as_config(site: Site, value: Value) -> Value:
    """A dataclass, or a dictionary, as a configuration."""
    if isinstance(value, Class):
        value = site.machine.instance(value, (), site.node, site.scope)
    if isinstance(value, Instance):
        return operations.nested(
            Dictionary({k: _as_config(site, v) for k, v in value.attributes.items()})
        )
    if isinstance(value, Dictionary):
        return operations.nested(value)
    return value


def config_dictionary(site: Site) -> Value:
    made = operations.dictionary_of(site.passed)
    for key in ("new_allowed", "type_safe", "convert_dict", "init_dict"):
        made.items.pop(key, None)
    for key, value in made.items.items():
        made.items[key] = site.machine.switchable(str(key), value, site.node)
    return operations.nested(made)


def instantiate(site: Site) -> Value | None:
    """Hydra's ``instantiate({"_target_": "a.b.C", ...}, ...)``."""
    config = site.get("config", 0)
    if not isinstance(config, Dictionary):
        return None
    target = config.items.get("_target_")
    if not isinstance(target, Known) or not isinstance(target.data, str):
        return None
    function = by_name(site.machine, target.data, site.node)
    passed = []
    for key, value in config.items.items():
        if str(key) in ("_target_", "_partial_", "_recursive_", "_convert_"):
            continue
        passed.append(Passed(value, site.node, str(key)))
    passed += [each for each in site.passed if each.name and each.name != "config"]
    partial = config.items.get("_partial_")
    if isinstance(partial, Known) and partial.data:
        return Bound(function, None, tuple(passed))
    return site.machine.call(function, passed, site.node, site.scope)


def by_name(machine: Machine, dotted: str, node: ast.AST) -> Value:
    """What a dotted name of a configuration stands for."""
    head, _, last = dotted.rpartition(".")
    if not head:
        return Library(dotted)
    held = machine.imported(head, 0, module_of(node))
    if isinstance(held, Library) and "." in head:
        above = by_name(machine, head, node)
        held = above if isinstance(above, (Class, ModuleOf)) else held
    return machine.attribute(held, last, node, scope_of(machine, node))


def optimizer_of_keras(site: Site) -> Value | None:
    """``keras.optimizers.get({"class_name": "Adam", "config": {...}})``."""
    given = site.get("identifier", 0)
    name = given.items.get("class_name") if isinstance(given, Dictionary) else given
    config = given.items.get("config") if isinstance(given, Dictionary) else None
    if not isinstance(name, Known) or not isinstance(name.data, str):
        return given
    items = config.items if isinstance(config, Dictionary) else {}
    passed = tuple(Passed(value, site.node, str(key)) for key, value in items.items())
    known = name.data[:1].upper() + name.data[1:]
    return made_by(site.machine, f"{site.name.rpartition('.')[0]}.{known}", passed, site.node)


def config_of_python(site: Site, path: Value | None) -> Value:
    """ml_collections' file of Python, whose ``get_config()`` gives the configuration."""
    if not isinstance(path, Known) or not isinstance(path.data, str):
        return site.unknown("config")
    file = site.machine.finder.file(path.data.partition(":")[0], site.scope.module)
    module = site.machine.finder.parsed(file) if file is not None and file.suffix == ".py" else None
    if module is None:
        return loaded(site.machine, path.data, site.node) or site.unknown("config")
    scope = site.machine.module(module)
    function = scope.names.get("get_config")
    if function is None:
        return site.unknown("config")
    return site.machine.call(function, (), site.node, scope)
