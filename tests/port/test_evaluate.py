"""Values followed through a module: Python itself, which runs the same lines, says what they are."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbridge import SourceError, port

LINES = {
    "arithmetic": "x = 2. ** 15",
    "shift": "x = 1 << 15",
    "precedence": "x = (3 + 4 * 2 - 1) / 2 % 4 + 7 // 2",
    "signs": "x = -(-8)",
    "text": "x = float('1' + '0' * 3)",
    "f-string": "n = 4\nx = int(f'{n}{n}')",
    "tuple": "a, (b, c) = 1, (2, 3)\nx = a + b * c",
    "starred": "items = [1, *(2, 3)]\nx = items[2] + items[-1]",
    "dictionary": (
        "d = {'a': 1, **{'b': 2}}\n"
        "d['c'] = d['a'] + d['b']\n"
        "d.update(c=9, e=4)\n"
        "x = d['c'] + d['e']"
    ),
    "get": "d = dict(a=1)\nx = d.get('a', 5) + d.get('b', 7) + d.pop('a') + d.setdefault('z', 3)",
    "union": "x = len({1, 2} | {3}) + len([1] + [2])",
    "comprehension": "x = [n * 2 for n in (1, 2, 3) if n != 2][1]",
    "loop": "x = 1\nfor n in [2, 3, 4]:\n    x = x * n",
    "left loop": "for x in [2.0, 4.0, 8.0]:\n    if x == 4.0:\n        break\nelse:\n    x = 16.0",
    "skipped turn": "for n in [2, 4]:\n    if n == 4:\n        continue\n    x = n",
    "inner loop left": (
        "for n in [2, 4]:\n    for m in [3, 5]:\n        if m == n + 1:\n            break\n    x = m"
    ),
    "loop that never runs": "x = 3\nwhile False:\n    x = 4",
    "append": "items = []\nfor n in (5, 6):\n    items.append(n)\nx = items[1]",
    "conditional": "x = 3 if 'cuda' in 'cuda:0' else 4",
    "and or": "x = (0 or 5) + (1 and 2) + (None or 3)",
    "chained": "x = 8.0 if 1 < 2 < 3 else 9.0",
    "function": (
        "def f(a, b=2, *, c=3):\n"
        "    if a > 1:\n"
        "        return a * b\n"
        "    return c\n"
        "x = f(5) + f(0, c=4)"
    ),
    "lambda": "f = lambda a: a + 1\nx = f(f(1))",
    "closure": (
        "def make(n):\n    def inner(m):\n        return n * m\n    return inner\nx = make(3)(4)"
    ),
    "kwargs": "def f(**kw):\n    return kw['a'] + len(kw)\nx = f(**{'a': 4, 'b': 5})",
    "args": "def f(first, *rest):\n    return first + rest[1]\nx = f(*[1, 2, 3])",
    "partial": "import functools\nf = functools.partial(pow, 2)\nx = f(5)",
    "class": (
        "class C:\n"
        "    n = 3\n"
        "    def __init__(self, m):\n"
        "        self.m = m\n"
        "    def f(self):\n"
        "        return self.n * self.m\n"
        "x = C(4).f()"
    ),
    "inheritance": (
        "class A:\n"
        "    def f(self):\n"
        "        return 2\n"
        "class B(A):\n"
        "    def f(self):\n"
        "        return super().f() + 1\n"
        "x = B().f()"
    ),
    "property": (
        "class C:\n"
        "    @property\n"
        "    def n(self):\n"
        "        return 7\n"
        "    @staticmethod\n"
        "    def s(a):\n"
        "        return a + 1\n"
        "x = C().n + C.s(1)"
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n"
        "@dataclass\n"
        "class C:\n"
        "    a: int = 1\n"
        "    b: list = field(default_factory=lambda: [4])\n"
        "x = C(a=3).a + C().b[0]"
    ),
    "namespace": (
        "from types import SimpleNamespace\n"
        "ns = SimpleNamespace(a=2)\n"
        "ns.b = 3\n"
        "x = ns.a + ns.b + getattr(ns, 'a') + getattr(ns, 'c', 9)"
    ),
    "enumeration": "import enum\nclass E(enum.Enum):\n    A = 5\nx = E.A.value",
    "global": "x = 1\ndef f():\n    global x\n    x = 6\nf()",
    "walrus": "x = (y := 4) + y",
    "match": (
        "k = 'b'\n"
        "match k:\n"
        "    case 'a':\n"
        "        x = 1\n"
        "    case 'b' | 'c':\n"
        "        x = 2\n"
        "    case _:\n"
        "        x = 3"
    ),
    "match of the rest": (
        "match 'z':\n    case 'b' | 'c':\n        x = 2\n    case _:\n        x = 3"
    ),
    "try": (
        "try:\n"
        "    x = 3\n"
        "except ImportError:\n"
        "    x = 4\n"
        "else:\n"
        "    x = x / 4\n"
        "finally:\n"
        "    x = x * 2"
    ),
    "with": "import contextlib\nwith contextlib.nullcontext():\n    x = 5",
    "copy": "import copy\na = [1]\nb = copy.deepcopy(a)\nb.append(2)\nx = len(a) + len(b)",
    "methods of text": "x = float('O2'.lower().replace('o', '1'))",
    "minimum": "x = min(3, 5) + max(2, 1) + abs(-4) + round(2.6)",
}


def init_scale(lines, argument="x"):
    call = f"GradScaler(init_loss_scaling={argument})"
    reading = port.read(f"from paddle.amp import GradScaler\n{lines}\n{call}\n")
    return [each.settings.get("scaler.init_scale") for each in reading.alternatives], reading


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_values_are_those_that_python_would_find(lines):
    names = {}
    exec(lines, names)
    assert init_scale(lines)[0] == [float(names["x"])]


OPERATORS = st.sampled_from(["+", "-", "*", "//", "%", "/", "|", "&"])
NUMBERS = st.integers(0, 9).map(str)


def larger(expressions):
    """Exponents are written out: Python itself would compute ``7 ** (9 ** 9)`` for half an hour."""
    any_two = st.tuples(expressions, OPERATORS, expressions)
    with_exponent = st.tuples(expressions, st.sampled_from(["**", "<<"]), NUMBERS)
    return st.one_of(any_two, with_exponent).map(lambda t: f"({t[0]} {t[1]} {t[2]})")


@given(st.recursive(NUMBERS, larger, max_leaves=6))
def test_arithmetic_is_pythons(expression):
    try:
        expected = float(eval(expression))  # of 9 ** (9 ** 5) at most, 56,347 digits
    except (ArithmeticError, TypeError, ValueError):
        return
    found, _ = init_scale("", expression)
    assert found in ([expected], [None])  # what is too large is left unknown
    if abs(expected) < 1e9 and "**" not in expression and "<<" not in expression:
        assert found == [expected]


UNKNOWN = {
    "environment": "import os\nx = float(os.environ['SCALE'])",
    "call": "x = load()['scale']",
    "counter": "x = 0\nfor batch in loader:\n    x += 1",
    "doubled while small": "x = 1\nwhile x < 10**300:\n    x = x * 2",
    "doubled in place": "x = 1.0\nwhile x < 1e30:\n    x *= 2",
    "doubled for ever": "x = 1\nwhile True:\n    x = x * 2\n    if x > 100:\n        break",
    "doubled so often": "x = 1.0\nfor n in range(20):\n    x = x * 2",
    "a choice, doubled": "x = 1.0 if cfg.a else 2.0\nfor n in loader:\n    x = x * 2",
    "an option, doubled": (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--x', type=float, default=2.0)\nx = parser.parse_args().x\n"
        "while x < 100:\n    x = x * 2"
    ),
    "carried under another name": "x = 1.0\nfor n in loader:\n    y = x * 2\n    x = y",
    "carried in a pair": "a, x = 1, 2\nwhile x < 1000:\n    a, x = x, a + x",
    "carried in an attribute": (
        "class A: pass\na = A()\na.s = 1.0\nfor n in loader:\n    a.s = a.s * 2\nx = a.s"
    ),
    "carried by a function": "x = 1.0\ndef f(n):\n    return n * 2\nwhile c():\n    x = f(x)",
    "changed by a function": (
        "x = 1.0\ndef f():\n    global x\n    x = x * 2\nwhile c():\n    f()"
    ),
    "text that grows": "s = '1'\nfor n in loader:\n    s = s + '0'\nx = float(s)",
    "filled in a loop": "items = []\nfor n in loader:\n    items.append(n)\nx = items[0]",
    "a number of NumPy": "import numpy as np\nx = np.float32(1024)",
    "a number of a library": "import math\nx = math.pow(2, 15)",
    "a list from which something is taken": "a = [2.0, 4.0]\na.remove(2.0)\nx = a[0]",
    "parameter": "def f(x):\n    GradScaler(init_loss_scaling=x)\nx = config.scale",
    "impossible": "x = 'a' + 1",
    "too large": "x = 2 ** 10 ** 10",
    "squares of squares": "x = 3\n" + "x = x * x\n" * 40,
    "powers of powers": "x = pow(pow(9, 4095), 4095)\nx = pow(x, 4095)",
    "shifts of shifts": "x = 1\n" + "x = x << 4000\n" * 50,
    "text added to itself": "s = 'a'\n" + "s = s + s\n" * 40 + "x = len(s)",
    "text in text": "s = 'aa'\n" + "s = s.replace('a', s)\n" * 40 + "x = len(s)",
    "a wide number": "x = float('%0999999999d' % 3)",
    "a wide format": "x = float('{:0{}}'.format(3, 999999999))",
    "a list added to itself": "s = [1]\n" + "s = s + s\n" * 40 + "x = s[-1]",
    "a list extended by itself": "s = [1]\n" + "s.extend(s)\n" * 40 + "x = s[-1]",
    "recursion": "def f(n):\n    return f(n - 1)\nx = f(3)",
    "unpacked": "x = 1\nGradScaler(**load())\nx = load()",
    "input": "x = float(input())",
}


@pytest.mark.parametrize("lines", UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_known_is_said_with_its_place(lines):
    _, reading = init_scale(lines)
    (alternative,) = reading.alternatives
    assert "scaler.init_scale" not in alternative.settings
    place = alternative.unknown["scaler.init_scale"]
    assert place.text in reading.findings[0].message
    with pytest.raises(SourceError, match=r"--set"):
        alternative.recipe  # noqa: B018
    known = {"scaler.init_scale": 8.0, "policy.level": "O1", "scaler.enabled": True}
    assert alternative.recipe_with(known).scaler.init_scale == 8.0


CONDITIONS = {
    "if": (
        "if args.big:\n    x = 1.0\nelse:\n    x = 2.0",
        {("args.big",): 1.0, ("not args.big",): 2.0},
    ),
    "expression": ("x = 1.0 if a.b(c) else 2.0", {("a.b(c)",): 1.0, ("not a.b(c)",): 2.0}),
    "in a name": (
        "flag = cfg.big\nx = 2.0\nif flag:\n    x = 1.0",
        {("cfg.big",): 1.0, ("not cfg.big",): 2.0},
    ),
    "the same twice": (
        "x = 1.0 if cfg.big else 2.0\nif cfg.big:\n    x = x * 4",
        {("cfg.big",): 4.0, ("not cfg.big",): 2.0},
    ),
    "and": (
        "x = 1.0 if cfg.a and cfg.b else 2.0",
        {("cfg.a", "cfg.b"): 1.0, ("not cfg.a",): 2.0},  # or not cfg.b
    ),
    "equal": (
        "x = {'s': 1.0, 'm': 2.0}.get('m') if cfg.size == 'm' else 3.0",
        {("cfg.size == 'm'",): 2.0, ("cfg.size != 'm'",): 3.0},
    ),
    "of no matter": ("y = 1 if cfg.a else 2\nx = 3.0\nif cfg.b:\n    print(y)", {(): 3.0}),
    "two calls of the same": (
        "if cfg.a:\n    GradScaler(True, 4)\nelse:\n    GradScaler(True, 4.0)\nx = 4",
        {(): 4.0},
    ),
    "the same either way": ("x = 3.0 if cfg.a else 3.0", {(): 3.0}),
    "early return": (
        "def f():\n    if cfg.a:\n        return 1.0\n    return 2.0\nx = f()",
        {("cfg.a",): 1.0, ("not cfg.a",): 2.0},
    ),
    "raise": ("if not cfg.gpu:\n    raise SystemExit\nx = 5.0", {(): 5.0}),
    "chain": (
        "if cfg.s == 'a':\n    x = 1.0\nelif cfg.s == 'b':\n    x = 2.0\nelse:\n    x = 3.0",
        {
            ("cfg.s == 'a'",): 1.0,
            ("cfg.s != 'a'", "cfg.s == 'b'"): 2.0,
            ("cfg.s != 'a'", "cfg.s != 'b'"): 3.0,
        },
    ),
    "left loop": (
        "for n in [2.0, 4.0]:\n    x = n\n    if cfg.a:\n        break",
        {("not cfg.a",): 4.0, ("cfg.a",): 2.0},
    ),
}


@pytest.mark.parametrize("lines, expected", CONDITIONS.values(), ids=CONDITIONS)
def test_conditions_give_alternatives(lines, expected):
    _, reading = init_scale(lines)
    found = {each.conditions: each.settings["scaler.init_scale"] for each in reading.alternatives}
    assert found == expected


def test_what_one_turn_leaves_to_the_next_is_unknown_where_it_is_read():
    lines = "y = 1.0\nfor n in loader:\n    if n:\n        y = 3.0\n    x = y * 2\n    y = 4.0"
    _, reading = init_scale(lines)
    found = {
        each.conditions: each.settings.get("scaler.init_scale") for each in reading.alternatives
    }
    assert found == {("n",): 6.0, ("not n",): None}


def test_too_many_conditions_are_cut_and_told():
    lines = "x = 0\n" + "\n".join(f"x = x + (2 ** {n} if cfg.c{n} else 0)" for n in range(1, 7))
    _, reading = init_scale(lines)
    assert len(reading.alternatives) <= 32
    told = [finding for finding in reading.findings if finding.kind == "unknown"]
    assert told


@pytest.mark.parametrize(
    "options, argument",
    [
        ("'--scale', type=float, default=64.0", "args.scale"),
        ("'--scale', type=float, default=64.0", "args.scale * 2 ** 3"),
        ("'-s', '--the-scale', default='32', type=float", "args.the_scale"),
        ("'--scale', dest='other', default=16.0", "args.other"),
        ("'--scale', type=int, default=2 ** 10", "vars(args)['scale']"),
    ],
)
def test_defaults_of_the_command_line(options, argument):
    parser = argparse.ArgumentParser()
    eval(f"parser.add_argument({options})", {"parser": parser})
    args = parser.parse_args([])
    made = f"p = argparse.ArgumentParser()\np.add_argument({options})\nargs = p.parse_args()"
    lines = f"import argparse\n{made}"
    found, reading = init_scale(lines, argument)
    assert found == [float(eval(argument))]
    assert args is not None
    (note,) = [finding for finding in reading.findings if "may change it" in finding.message]
    assert note.place.line == 4


def test_conditions_that_grow_upon_each_other_stay_bounded():
    steps = "\n".join(
        f"x = x if cfg.a{n} and x != y else y\ny = y if x or cfg.b{n} else x" for n in range(40)
    )
    _, reading = init_scale(f"x, y = cfg.x, cfg.y\nif cfg.z:\n    x = 1.0\n{steps}")
    assert len(reading.alternatives) <= 32


def test_texts_of_many_choices_stay_bounded():
    choices = "\n".join(f"a{n} = 'x' if cfg.a{n} else 'y'" for n in range(12))
    text = "".join(f"{{a{n}}}" for n in range(12))
    _, reading = init_scale(f"{choices}\nname = f'{text}'\nx = len(name)")
    assert [each.conditions for each in reading.alternatives] == [()]


def test_long_expressions_are_cut_where_they_are_told_of():
    wordy = " + ".join(f"cfg.number_{n}" for n in range(40))
    _, reading = init_scale(f"x = {wordy}")
    (finding,) = [each for each in reading.findings if "init_scale" in each.message]
    assert "cfg.number_0 + cfg.number_1" in finding.message
    assert len(finding.message) < 200
