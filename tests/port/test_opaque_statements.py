"""One statement that cannot be understood, put into each file of the corpus.

What is read of the file may then be less certain. It may not be otherwise, unless that is told: each
recipe must be one of those before, but for keys that are unknown now. Each statement stands at one place
of a file; by night at three, each day others. A quarter of the files are in `make test`, the others are slow.
"""

import ast
import re

import pytest
from foreign_scripts import SCRIPTS, reading_of
from nightly import DAY, NIGHTLY

from ampbridge import port

NAMES = re.compile(
    r"(self\.)?_?\w*(model|net|optim|opt|scaler|args|config|cfg|loss|policy|strategy)\w*", re.I
)
OPAQUE = (
    "outside.prepare({name})",
    "outside.update({name}, level='O2')",
    "{name} = outside.wrap({name})",
    "{name}.rearrange(outside.setting)",
    "setattr({name}, outside.setting, True)",
    "{name}.__dict__.update(outside.settings())",
    "outside.merge_config(globals())",
    "globals().update(outside.settings())",
    "exec(outside.text)",
)


def blocks(tree):
    """The bodies of a module's functions, classes and statements."""
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                yield body


def places(text):
    """Where a line can be put: its number, and its indentation."""
    found = []
    for body in blocks(ast.parse(text)):
        if text.splitlines()[body[0].lineno - 1][body[0].col_offset :].startswith("elif"):
            continue
        for before, node in zip([None, *body], body, strict=False):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            is_import = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            shares_line = before is not None and before.end_lineno >= first
            alone = text.splitlines()[first - 1][: node.col_offset].strip() in ("", "@")
            if not (is_import or is_text or shares_line) and alone:
                found.append((first - 1, node.col_offset))
        last = body[-1]
        if text.splitlines()[last.lineno - 1][: last.col_offset].strip() == "":
            ends = isinstance(last, (ast.Return, ast.Raise, ast.Break, ast.Continue))
            found += [] if ends else [(last.end_lineno, last.col_offset)]
    return sorted(set(found))


def names(text):
    """Names in a file that are of models, optimizers, scalers or settings."""
    found = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    }
    return sorted(name for name in found if NAMES.fullmatch(name)) or ["model"]


def variants(text):
    """Each kind of statement for each name, and the file with it; at another place each."""
    lines, where = text.splitlines(), places(text)
    filled = [
        template.format(name=name)
        for template in OPAQUE
        for name in (names(text) if "{name}" in template else ("",))
    ]
    for number, statement in enumerate(filled):
        for more in range(3 if NIGHTLY else 1):
            line, column = where[(number * 7 + DAY + more * 11) % len(where)]
            put = [*lines[:line], " " * column + statement, *lines[line:]]
            yield f"line {line}: {statement}", "\n".join(["import outside", *put, ""])


def is_no_more(after, before):
    """Whether a recipe says no more than another, and that is the same."""
    return all(
        key in after.unknown or after.settings.get(key) == before.settings.get(key)
        for key in {*after.settings, *before.settings, *before.unknown}
    )


def said(finding):
    """A finding's words, without its lines: all lines have moved."""
    return finding.kind, re.sub(r"line \d+", "line", finding.message)


def is_told_or_less(after, before):
    """Whether a reading is no other than the one before, tells something new, or has new conditions."""
    told = set(map(said, before.findings))
    if any(said(found) not in told for found in after.findings):
        return True
    conditions = {each for other in before.alternatives for each in other.conditions}
    return all(
        any(is_no_more(each, other) for each in after.alternatives) for other in before.alternatives
    ) and all(
        any(is_no_more(each, other) for other in before.alternatives)
        or not conditions.issuperset(each.conditions)
        for each in after.alternatives
    )


@pytest.mark.parametrize(
    "snippet",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if number % 4 else [])
        for number, path in enumerate(SCRIPTS)
    ],
)
def test_what_is_not_understood_may_not_make_a_reading_assert_otherwise(snippet):
    text = snippet.read_text()
    before = reading_of(snippet)
    wrong = []
    for statement, changed in variants(text):
        after = port.read(changed)
        lost = bool(before.alternatives) and not after.alternatives
        if lost or not is_told_or_less(after, before):
            wrong.append((statement, [dict(each.settings) for each in after.alternatives]))
    assert not wrong, (wrong[:3], [dict(each.settings) for each in before.alternatives])
