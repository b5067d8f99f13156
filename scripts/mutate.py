"""Change the code in one place and see whether a test fails; do so in many places.

    python scripts/mutate.py core                a sample, each day another
    python scripts/mutate.py core --sample 200   at most 200 mutants
    python scripts/mutate.py torch --only gradients.py --all

A mutant that no test fails for has survived: the line has no test, or the change makes no difference.
Read those that are told. The exit status is 1 if fewer than LEAST_KILLED percent died: some of any
sample make no difference. ``--seed`` draws a sample again.

    run the tests once, and note which of them pass through which line and how long each takes
    for each mutant:
        fork, so that no framework is imported again
        compile the module with the change in it
        run tests that pass through its line, one of each function first, until one fails
        if none did within some seconds: run more of them, MOST_SECONDS at most
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LEAST_KILLED = 75.0  # percent; of all some 93 die, and a sample of 25 moves by 5
SAID = Path(tempfile.gettempdir()) / f"mutant-{os.getpid()}.log"  # what the last tests printed
SECONDS_OF_A_MUTANT = 20.0  # of tests that pass, in the first round
MOST_SECONDS = 90.0  # in both rounds: each of JAX' tests compiles, and a survivor would run all
GUARDS = ("strict", "frozen", "eq")  # arguments that guard against mistakes of the code itself
PATIENCE = 60.0  # seconds of a mutant beyond its tests' own: a loop that no longer ends is noticed


class Group(NamedTuple):
    """Modules, and the tests that are to notice a change of them."""

    imports: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]


def _adapter(framework: str, modules: str, tests: str, *imports: str) -> Group:
    return Group(
        imports,
        tuple(f"backends/ampbridge_{framework}/{name}.py" for name in modules.split()),
        tuple(f"tests/{framework}/test_{name}.py" for name in tests.split()),
    )


CORE = """adapters/arguments adapters/interception adapters/nested adapters/registry
checkpoints/checkpoint checkpoints/training_state checkpoints/weights policies/policy policies/schedule
scaling/scale_rule scaling/scaler scaling/scaler_state scaling/skip_alarm
training/decorate training/own_loop training/result training/scheduler training/step
training/micro_batch training/step_state"""

GROUPS = {
    "core": Group(
        ("numpy",),
        tuple(f"ampbridge/{name}.py" for name in CORE.split()),
        ("tests/core", "tests/numpy/test_conformance.py", "tests/numpy/test_[s-t]*.py"),
    ),
    "numpy": _adapter(
        "numpy",
        "autocast/casting model/decorating step/gradients step/scaling training_state",
        "*",
        "numpy",
    ),
    "torch": _adapter(
        "torch",
        """model/decorating model/low_slots model/low_weights model/master_updates model/master_weights
        model/rounding step/gradients step/scaling training_state""",
        """conformance decorate gradients master_weights native_scaler regions scaler schedule
        training_state undecorated updates what_is_trained""",
        "torch",
    ),
    "tensorflow": _adapter(
        "tensorflow",
        "fit/loss_scale_optimizer model/decorating step/gradients step/scaling training_state",
        """conformance decorate fit native_scaler schedule step training_state update_order
        what_is_trained""",
        "tensorflow",
        "keras",
    ),
    "paddle": _adapter(
        "paddle",
        "model/decorating model/low_weights model/simulated_o2 step/gradients step/scaling training_state",
        """conformance native_o2 native_scaler neutral o2 observing regions scaler schedule training
        training_state what_is_trained""",
        "paddle",
    ),
    "jax": _adapter(
        "jax",
        "model/decorating model/stateful step/compiling step/gradients step/scaling training_state",
        "conformance masters stateful structure training",
        "jax",
        "flax",
        "optax",
    ),
}


# -- mutants


class Mutant(NamedTuple):
    """One change. ``name`` stays the same where lines move: file, function, change, and which of these.

    ``runs_once``: the function keeps its result, so that one test passes through the line for all.
    """

    name: str
    file: Path
    line: int
    tree: ast.Module
    runs_once: bool


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


def changed(node: ast.AST) -> ast.AST | None:
    """``node`` with its meaning changed; None for a node that is left alone."""
    new: Any = copy.copy(node)
    match node:
        case ast.Compare(ops=[op]):
            new.ops = [COMPARISONS[type(op)]()]
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            new.op = OPERATORS[type(op)]()
        case ast.Constant(value=bool() as value):
            new.value = not value
        case ast.Constant(value=int() | float() as value):
            new.value = value + 1
        case ast.If(test=test) | ast.IfExp(test=test) if isinstance(test, (ast.Name, ast.Call)):
            new.test = ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=ast.expr() as value) if not _says_no(value):
            new.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Continue():
            return ast.Break()
        case ast.Break():
            return ast.Continue()
        case _:
            return None
    return new  # type: ignore[no-any-return]


def _says_no(node: ast.expr) -> bool:
    """None or False: who asks takes one for the other."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


class _Found(NamedTuple):
    """A node, the function in which it stands, and whether that function keeps its result."""

    function: str
    node: ast.AST
    runs_once: bool


class _Places(ast.NodeVisitor):
    """Every node that can be changed.

    Not what messages are made of, and not annotations: both are read by people and tools. Nor overloads.
    """

    def __init__(self) -> None:
        self.found: list[_Found] = []
        self._within: list[str] = []
        self._caching = 0

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.Assign) and _named(node, ("msg", "hint", "_HINT")):
            return
        if isinstance(node, ast.keyword) and node.arg in GUARDS:
            return
        if isinstance(node, ast.FunctionDef) and _decorated(node, ("overload",)):
            return
        if changed(node) is not None:
            self.found.append(_Found(".".join(self._within), node, bool(self._caching)))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self._within.append(node.name)
            self._caching += _decorated(node, ("cache", "lru_cache", "cached_property"))
            for part in (*node.decorator_list, *node.body):
                self.visit(part)
            if isinstance(node, ast.FunctionDef):
                for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                    self.visit(default)
            self._caching -= _decorated(node, ("cache", "lru_cache", "cached_property"))
            self._within.pop()
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
        else:
            self.generic_visit(node)


def _decorated(node: ast.FunctionDef | ast.ClassDef, names: Sequence[str]) -> bool:
    plain = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(isinstance(each, ast.Name) and each.id in names for each in plain)


def _named(node: ast.Assign, names: Sequence[str]) -> bool:
    return any(isinstance(target, ast.Name) and target.id in names for target in node.targets)


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)


def mutants(file: Path) -> Iterator[Mutant]:
    """Each change of a module by itself."""
    text = file.read_text("utf-8")
    places = _Places()
    places.visit(ast.parse(text))
    counts: dict[str, int] = {}
    for number, (function, node, runs_once) in enumerate(places.found):
        before, after = ast.unparse(node), ast.unparse(changed(node) or node)
        shown = f"{_first_line(before)} -> {_first_line(after)}"
        name = f"{file.relative_to(ROOT)}: {function}: {shown}"
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1:
            name += f" ({counts[name]})"
        again = ast.parse(text)  # each mutant has a tree of its own
        those = _Places()
        those.visit(again)
        old = those.found[number].node
        new = ast.copy_location(changed(old) or old, old)
        tree = ast.fix_missing_locations(_Exchange(old, new).visit(again))
        yield Mutant(name, file, getattr(node, "lineno", 0), tree, runs_once)


def _first_line(text: str) -> str:
    line, *more = text.split("\n")
    return f"{line} ..." if more else line


# -- running tests in a forked process


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a tree that is not the file's."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> Any:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        within = ROOT / "backends" if "backends" in mutant.file.parts else ROOT
        parts = mutant.file.relative_to(within).with_suffix("").parts
        self._name, self._mutant = ".".join(parts), mutant

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        loader = _Loader(name, str(self._mutant.file), self._mutant.tree)
        return importlib.machinery.ModuleSpec(name, loader, origin=str(self._mutant.file))


def in_a_fork(work: Callable[[], int], seconds: float) -> int | None:
    """The exit status of ``work`` in a child; None if it was still running after ``seconds``."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.setsid()
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class _Unshrunk:
    """A plugin: an example that fails is enough, it need not be the smallest."""

    def pytest_collection_finish(self, session: Any) -> None:
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", settings.default, phases=(Phase.explicit, Phase.generate), max_examples=20
        )
        settings.load_profile("mutants")


class _Footprints:
    """A plugin: which tests pass through which lines of the modules, and how long each takes."""

    def __init__(self, files: Sequence[Path]) -> None:
        from coverage import Coverage

        self._coverage = Coverage(data_file=None, include=[str(file) for file in files])
        self.seconds: dict[str, float] = {}

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def passing(self) -> dict[str, list[str]]:
        self._coverage.stop()
        data = self._coverage.get_data()
        return {
            f"{file}:{line}": [name for name in names if name]
            for file in data.measured_files()
            for line, names in data.contexts_by_lineno(file).items()
        }


def pytest_run(arguments: Sequence[str], *plugins: Any) -> int:
    import pytest

    # Slow tests have threads of their own, which do not get on with tracing: one of Paddle's hangs.
    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "-m", "not slow"]
    return int(pytest.main([*options, *arguments], plugins=[*plugins, _Unshrunk()]))


class Footprints(NamedTuple):
    """``passing``: "file:line" -> the tests that pass through it; ``seconds`` of each test."""

    passing: dict[str, list[str]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant, seconds: float = SECONDS_OF_A_MUTANT) -> list[str]:
        """Those that pass through its line, or through its module, if the line runs once for all of them.

        Where there are more than there is time for: the quickest of each test function, then the second
        of each, and so on. The quickest of all would be much the same test many times.
        """
        line = [] if mutant.runs_once else self.passing.get(f"{mutant.file}:{mutant.line}")
        names = line or [
            name
            for place, passing in self.passing.items()
            if place.startswith(f"{mutant.file}:")
            for name in passing
        ]
        counts: Counter[str] = Counter()
        turns: list[tuple[int, float, str]] = []
        for name in sorted(set(names), key=lambda name: self.seconds[name]):
            function = name.partition("[")[0]
            turns.append((counts[function], self.seconds[name], name))
            counts[function] += 1
        turns.sort()
        ends = list(accumulate(seconds for _, seconds, _ in turns))
        return [
            turn[2] for turn, end in zip(turns, ends, strict=True) if end <= max(seconds, ends[0])
        ]


def footprints(group: Group, files: Sequence[Path]) -> Footprints:
    """Run the group's tests once, as the code is.

    Raises:
        SystemExit: if a test fails already.
    """
    with tempfile.NamedTemporaryFile("w+", suffix=".json") as kept:

        def work() -> int:
            found = _Footprints(files)
            status = pytest_run(test_files(group), found)
            Path(kept.name).write_text(json.dumps([found.passing(), found.seconds]))
            return status

        status = in_a_fork(work, 3600)
        if status != 0:
            said = "\n".join(SAID.read_text(errors="replace").splitlines()[-30:])
            raise SystemExit(f"The tests fail without a change (status {status}):\n{said}")
        return Footprints(*json.loads(Path(kept.name).read_text()))


def test_files(group: Group) -> list[str]:
    found = {pattern: sorted(ROOT.glob(pattern)) for pattern in group.tests}
    missing = [pattern for pattern, paths in found.items() if not paths]
    if missing:
        raise SystemExit(f"There are no tests {', '.join(missing)}.")
    files = [str(path) for paths in found.values() for path in paths]
    return [path for path in files if "kill" not in path and "growth" not in path]


def survives(mutant: Mutant, tests: Footprints) -> bool:
    """Whether no test fails for it: of the first ones, and then of more."""
    first, every = tests.tests_of(mutant), tests.tests_of(mutant, MOST_SECONDS)
    return all(_passes(mutant, names, tests) for names in (first, every[len(first) :]))


def _passes(mutant: Mutant, names: Sequence[str], tests: Footprints) -> bool:
    if not names:
        return True
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        Path(listed.name).write_text("\n".join(names))

        def work() -> int:
            sys.meta_path.insert(0, _Finder(mutant))
            return pytest_run([f"@{listed.name}"])

        own = sum(tests.seconds[name] for name in names)
        return in_a_fork(work, PATIENCE + 5 * own) == 0


# -- the command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=list(GROUPS), help="frameworks cannot share a process")
    parser.add_argument("--sample", type=int, default=25, help="how many mutants")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--seed", type=int, default=date.today().toordinal())
    parser.add_argument("--only", help="the name of one file of the group")
    options = parser.parse_args()
    os.chdir(ROOT)
    group = GROUPS[options.group]
    files = [ROOT / module for module in group.modules]
    files = [file for file in files if options.only in (None, file.name)]
    for module in ("pytest", *group.imports):
        importlib.import_module(module)
    tests = footprints(group, files)
    drawn = [mutant for file in files for mutant in mutants(file)]
    count = len(drawn)
    if not options.all:
        drawn = random.Random(options.seed).sample(drawn, min(options.sample, count))
    alive = 0
    for mutant in drawn:
        if survives(mutant, tests):
            alive += 1
            why = "" if tests.tests_of(mutant) else "no test passes through this line"
            print(f"  survived: {mutant.name} (line {mutant.line})  {why}", flush=True)
    share = 100 * (1 - alive / len(drawn)) if drawn else 100.0
    print(
        f"{options.group}: {share:.1f} % of {len(drawn)} mutants killed, of {count}; seed {options.seed}"
    )
    SAID.unlink(missing_ok=True)
    return int(share < LEAST_KILLED)


if __name__ == "__main__":
    sys.exit(main())
