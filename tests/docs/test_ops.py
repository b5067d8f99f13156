"""docs/ops.md is what the op table says."""

import json
from pathlib import Path

from processes import run_python

from ampbridge.policies import op_table

ROOT = Path(__file__).parents[2]
DATA = ROOT / "ampbridge" / "policies" / "data"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs/ops.md").read_text().splitlines()
    if line.startswith("| `")
]


def test_it_is_up_to_date():
    run_python(ROOT / "scripts/write_ops.py", "--check")


def test_every_op_has_a_row():
    table = json.loads((DATA / "ops.json").read_text())["ops"]
    assert sorted(row[0].strip("` ") for row in ROWS) == sorted(op["name"] for op in table)


def test_its_rules_are_those_of_the_lists():
    """By the raw lists, for one list set that says the same at every level and of every dtype."""
    (rules,) = json.loads((DATA / "lists.json").read_text())["torch"]["lists"]
    for row in ROWS:
        op = row[0].strip("` ")
        listed = [rule for rule in ("allow", "deny", "promote") if op in rules[rule]]
        assert row[1] == (listed[0] if listed else f"({rules['unlisted']})"), op


def test_its_names_are_taken_by_policies():
    prefixes = {"TensorFlow, Keras": "tf", "PyTorch": "torch"}
    prefixes |= {name: name.lower() for name in ("Paddle", "NumPy", "JAX")}
    own = set()
    for row in ROWS:
        *named, reason = row[-1].removesuffix(" |").split("<br>")
        assert reason.startswith("*safe*: ")
        for framework, names in (line.split(": ", 1) for line in named):
            prefix = prefixes[framework]
            for name in names.replace("`", "").split(", "):
                if op_table.resolve(f"{prefix}:{name}") not in op_table.ops():
                    own.add(f"{prefix}:{name}")
    assert own == {"paddle:scale"}  # as the page says
