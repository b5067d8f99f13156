"""Write what is made from code about porting: the recipe's JSON schema, and parts of documents.

    python scripts/write_porting.py            writes them
    python scripts/write_porting.py --check    exits with 1 if they are not what stands there

A part of a document stands between ``<!-- command: ampbridge ... -->``, ``<!-- file: ... -->``,
``<!-- diff: ... -->`` or ``<!-- table: ... -->`` and ``<!-- end -->``. A command "in FOLDER" runs in a
copy of it, and what it writes with ``--out`` is one of the files made here. What goes to standard error
is shown of a command that ends with ``2>&1``, and nothing else of one that ends with ``2>&1 >/dev/null``.
A file may be followed by the lines that are shown, ``train.py:26-45``.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from ampbridge import cli
from ampbridge.checkpoints import atomic_files
from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe
from ampbridge.training.recipe_file import schema
from ampbridge_port.reader.dialects import paddle, tensorflow, torch
from ampbridge_port.reader.dialects.calls import Argument, Call, Dialect, Draft, Name, Object
from ampbridge_port.reading import Place
from ampbridge_port.writers import lacks, losses

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "docs" / "recipe.schema.json"
PAGES = (
    "porting.md",
    "porting_guide.md",
    "gallery/ported_recipe.md",
    "reference/porting_names.md",
)
DOCUMENTS = tuple(ROOT / "docs" / page for page in PAGES)
PART = re.compile(
    r"(<!-- (command|file|diff|table)(?: in (\S+))?: (.+?) -->\n).*?(<!-- end -->\n)", re.S
)
LANGUAGES = {".py": "python", ".yml": "yaml"}


def written() -> dict[Path, str]:
    """Each file with what it should hold."""
    files = {SCHEMA: json.dumps(schema(), indent=2) + "\n"}

    def part(found: re.Match[str]) -> str:
        start, kind, folder, what, end = found.groups()
        made = output(what, folder, files) if kind == "command" else PARTS[kind](what, files)
        return start + made + end

    for document in DOCUMENTS:
        files[document] = PART.sub(part, document.read_text())
    return files


def output(command: str, folder: str | None, files: dict[Path, str]) -> str:
    """What a command prints: its result, then what goes to standard error."""
    out, err = io.StringIO(), io.StringIO()
    arguments = shlex.split(command.removesuffix(" >/dev/null").removesuffix(" 2>&1"))[1:]
    name = arguments[arguments.index("--out") + 1] if folder and "--out" in arguments else None
    with copy_of(folder), redirect_stdout(out), redirect_stderr(err):
        if name is not None:
            Path(name).unlink(missing_ok=True)  # from the last time
        cli.main(arguments)
        if folder is not None and name is not None:
            files[ROOT / folder / name] = Path(name).read_text()
    shown = "" if command.endswith(" >/dev/null") else out.getvalue()
    shown += err.getvalue() if " 2>&1" in command else ""
    return "\n".join(["```text", f"$ {command}", *shown.strip("\n").splitlines(), "```", ""])


@contextmanager
def copy_of(folder: str | None) -> Iterator[None]:
    """Work in a copy of a folder; in the present one, if there is none to copy."""
    if folder is None:
        yield
        return
    present = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(shutil.copytree(folder, Path(temporary, "copy")))
        try:
            yield
        finally:
            os.chdir(present)


def source(what: str, files: Mapping[Path, str]) -> str:
    """A file, or some of its lines: ``train.py:26-45``."""
    path, _, lines = what.partition(":")
    text = files.get(ROOT / path) or (ROOT / path).read_text()
    if lines:
        first, last = map(int, lines.split("-"))
        text = textwrap.dedent("\n".join(text.splitlines()[first - 1 : last]))
    return f"```{LANGUAGES[Path(path).suffix]}\n{text.rstrip()}\n```\n"


def difference(paths: str, _: Mapping[Path, str]) -> str:
    """The lines that differ between two files, and their number."""
    before, after = (ROOT / path for path in paths.split())
    texts = (path.read_text().splitlines() for path in (before, after))
    lines = [*difflib.unified_diff(*texts, before.name, after.name, lineterm="", n=2)]
    added, removed = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
    shown = "\n".join(lines)
    return f"```diff\n{shown}\n```\n\n{added} lines are added, {removed} are removed.\n"


# -- Paddle's arguments, and their equals

Arguments = Mapping[str, Any]

_SCALING: Arguments = {
    "init_loss_scaling": 1024.0,
    "incr_ratio": 4.0,
    "decr_ratio": 0.25,
    "incr_every_n_steps": 500,
    "decr_every_n_nan_or_inf": 2,
    "use_dynamic_loss_scaling": False,
}
_TORCH_SCALING: Arguments = {
    "init_scale": 1024.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 500,
    "enabled": False,
}
_LISTS: Arguments = {"custom_white_list": ["elementwise_add"], "custom_black_list": ["softmax"]}

# Paddle's function -> a value to try for each of its arguments; None for objects that are trained.
PADDLE: Mapping[str, Arguments] = {
    "paddle.amp.auto_cast": {
        "enable": False,
        **_LISTS,
        "level": "O2",
        "dtype": "bfloat16",
        "use_promote": False,
    },
    "paddle.amp.decorate": {
        "models": None,
        "optimizers": None,
        "level": "O2",
        "dtype": "bfloat16",
        "master_weight": False,
        "save_dtype": "float32",
        "master_grad": True,
        "excluded_layers": [Name("paddle.nn.Softmax")],
    },
    "paddle.amp.GradScaler": {"enable": False, **_SCALING, **_TORCH_SCALING},
    "paddle.static.amp.decorate": {
        "optimizer": None,
        "amp_lists": _LISTS,
        "level": "O2",
        "dtype": "bfloat16",
        "master_weight": False,
        "master_grad": True,
        **_SCALING,
        "use_amp_guard": True,
        "use_promote": False,
    },
    "paddle.fluid.contrib.mixed_precision.decorate": {
        "optimizer": None,
        "amp_lists": _LISTS,
        **_SCALING,
        "use_pure_fp16": True,
        "use_fp16_guard": True,
        "use_bf16": True,
        "use_promote": False,
    },
    "paddle.Model.prepare": {"level": "O2", **_LISTS, **_SCALING},
    "paddle.distributed.fleet.DistributedStrategy.amp_configs": {
        **_LISTS,
        **_SCALING,
        "use_pure_fp16": True,
        "use_bf16": True,
    },
    "paddle.nn.ClipGradByGlobalNorm": {"clip_norm": 1.0},
    "paddle.nn.ClipGradByNorm": {"clip_norm": 1.0},
    "paddle.nn.ClipGradByValue": {"max": 1.0},
}

# Functions that take their settings in a dict -> the argument.
IN_A_DICT = {
    "paddle.Model.prepare": "amp_configs",
    "paddle.distributed.fleet.DistributedStrategy.amp_configs": "value",
}

# Functions of dynamic graphs, which take a region and a scaler besides.
DYNAMIC = {
    "paddle.amp.auto_cast",
    "paddle.amp.decorate",
    "paddle.amp.GradScaler",
    "paddle.nn.ClipGradByGlobalNorm",
    "paddle.nn.ClipGradByNorm",
    "paddle.nn.ClipGradByValue",
}

# What matters at O2 alone.
AT_O2 = {"master_weight", "master_grad", "save_dtype", "excluded_layers", "use_promote"}

# The present spellings of other frameworks, and values to try.
OTHERS: Mapping[str, tuple[Dialect, Mapping[str, Arguments]]] = {
    "torch": (
        torch.DIALECT,
        {
            "torch.autocast": {"dtype": "bfloat16", "enabled": False},
            "torch.amp.GradScaler": _TORCH_SCALING,
            "torch.nn.utils.clip_grad_norm_": {"max_norm": 1.0},
            "torch.nn.utils.clip_grad_value_": {"clip_value": 1.0},
        },
    ),
    "tensorflow": (
        tensorflow.DIALECT,
        {
            "keras.config.set_dtype_policy": {"policy": "mixed_bfloat16"},
            "keras.optimizers.LossScaleOptimizer": {
                "initial_scale": 1024.0,
                "dynamic_growth_steps": 500,
            },
            "tensorflow.clip_by_global_norm": {"clip_norm": 1.0},
            "keras.optimizers.SGD": {"global_clipnorm": 1.0, "clipnorm": 1.0, "clipvalue": 1.0},
        },
    ),
}

OURS = {"policy": "Policy", "scaler": "GradScaler", "step": "train_step", "decorate": "decorate"}
MARKS = {"changes": "in part", "lost": "no"}


def draft_of(dialect: Dialect, calls: Mapping[str, Arguments]) -> Draft:
    """What a file with these calls says."""
    draft = Draft()
    for function, values in calls.items():
        packed = {IN_A_DICT[function]: values} if function in IN_A_DICT else values
        arguments = {name: _argument(value) for name, value in packed.items()}
        _, handler = dialect.calls[function]
        assert handler is not None
        handler(Call(function, _place(function), arguments), draft)
    dialect.finish(draft)
    return draft


def _argument(value: Any) -> Argument:
    if value is _LISTS:  # an object that holds them
        arguments = {name: _argument(entries) for name, entries in _LISTS.items()}
        name = "paddle.static.amp.CustomOpLists"
        value = Object(name, Call(name, _place("lists"), arguments))
    parts: dict[Any, Argument] | None = None
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = {key: _argument(part) for key, part in items}
    return Argument(_place("a name"), lambda: value, None, lambda: parts)


def _place(text: str) -> Place:
    return Place("", 1, 0, text)


def changed(dialect: Dialect, function: str, fixed: Arguments, name: str, value: Any) -> list[str]:
    """The keys of a recipe that an argument sets, to something else than they are without it."""
    without = draft_of(dialect, {function: {k: v for k, v in fixed.items() if k != name}}).settings
    found = draft_of(dialect, {function: {**fixed, name: value}}).settings
    usual = {**USUAL, **without}
    keys = [
        k for k, v in found.items() if v is not None and v != usual.get(k) and k != "scaler.like"
    ]
    # In bfloat16 there is no scaling, whoever says so.
    return [key for key in keys if key != "scaler.enabled"] or keys


# What a recipe has where nothing is said.
USUAL = {
    **{f"policy.{key}": value for key, value in Policy().to_dict().items()},
    "decorate.master_grad": False,
}


def equals(framework: str) -> Mapping[str, str]:
    """Key of a recipe -> the framework's own arguments that set it."""
    dialect, functions = OTHERS[framework]
    found: dict[str, list[str]] = {}
    for function, values in functions.items():
        short = function.replace("tensorflow.", "tf.")
        for name, value in values.items():
            for key in changed(dialect, function, {}, name, value):
                found.setdefault(key, []).append(f"`{short}({name}=)`")
    return {key: ", ".join(arguments) for key, arguments in found.items()}


def arguments_table(*_: object) -> str:
    """A row for each argument of Paddle's AMP functions."""
    known = {framework: equals(framework) for framework in OTHERS}
    lines = ["| Paddle | recipe | ampbridge | PyTorch | TensorFlow, Keras |", "|---" * 5 + "|"]
    for function, values in PADDLE.items():
        if function not in IN_A_DICT:
            check_complete(function, values)
        for name, value in values.items():
            lines.append(_row(function, name, value, known))
    return "\n".join(lines) + "\n"


# Arguments that neither say what to compute in nor how to scale; min is -max, or no recipe has it.
NO_SETTINGS = {"group_name", "auto_skip_clip", "min"}


def check_complete(function: str, values: Arguments) -> None:
    """Whether every argument has a row."""
    signature = {"paddle.static.amp.decorate": paddle.STATIC}.get(function)
    parameters = signature or paddle.DIALECT.calls[function][0].split()
    if set(parameters) - NO_SETTINGS != set(values):
        raise LookupError(function, parameters)


def _row(function: str, name: str, value: Any, known: Mapping[str, Mapping[str, str]]) -> str:
    short = function.removeprefix("paddle.").replace(
        "distributed.fleet.DistributedStrategy", "fleet"
    )
    shown = f"`{short}({name}=)`"
    if function in IN_A_DICT:
        shown = f'`{short.removesuffix(".amp_configs")}: amp_configs["{name}"]`'
    if value is None:
        return f"| {shown} | | the model, the optimizer | the same | the same |"
    at_o2 = name in AT_O2 or function == "paddle.amp.decorate"
    fixed: dict[str, Any] = {"level": "O2"} if at_o2 and "level" in PADDLE[function] else {}
    if function == "paddle.amp.decorate":  # it makes masters for optimizers that it is passed
        fixed["optimizers"] = True
    draft = draft_of(paddle.DIALECT, _whole(function, {**fixed, name: value}))
    keys = changed(paddle.DIALECT, function, fixed, name, value)
    if not keys:
        said = [
            finding.message for finding in draft.findings if finding.kind in ("lost", "ignored")
        ]
        return f"| {shown} | none{': ' if said else ''}{''.join(said[:1])} | | | |"
    recipe = Recipe.from_dict(_sections(draft.settings))
    cells = [", ".join(f"`{key}`" for key in keys), ", ".join(map(_our_parameter, keys))]
    cells += [
        "; ".join(dict.fromkeys(_cell(key, framework, recipe, known[framework]) for key in keys))
        for framework in OTHERS
    ]
    return f"| {shown} | {' | '.join(cells)} |"


def _whole(function: str, arguments: Arguments) -> Mapping[str, Arguments]:
    """A call in a file with all that belongs to it."""
    usual: dict[str, Arguments] = {}
    if function in DYNAMIC:
        usual = {"paddle.amp.auto_cast": {}, "paddle.amp.GradScaler": {}}
    if function == "paddle.amp.decorate":
        shared = {name: arguments[name] for name in ("level", "dtype") if name in arguments}
        usual["paddle.amp.auto_cast"] = shared
    return {**usual, function: arguments}


def _sections(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def _our_parameter(key: str) -> str:
    section, _, name = key.partition(".")
    return f"`{OURS[section]}({name}=)`"


def _cell(key: str, framework: str, recipe: Recipe, known: Mapping[str, str]) -> str:
    """The framework's own argument; else whether the code that is written for it does the same."""
    if key in lacks(recipe, framework):
        return "with ampbridge"
    found = [loss for loss in losses(recipe, framework) if loss.key == key]
    if found:
        said = f"{MARKS[found[0].kind]}: {found[0].message}"
        return f"{known[key]} ({said})" if key in known else said
    return known.get(key, "written out")


PARTS = {"file": source, "diff": difference, "table": arguments_table}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    os.chdir(ROOT)
    files = written()
    if options.check:
        return int(
            any(not path.exists() or path.read_text() != text for path, text in files.items())
        )
    for path, text in files.items():
        atomic_files.write(path, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
