"""Rewritten scripts: AMP calls are ampbridge's, and nothing else has changed."""

import ast
from pathlib import Path

import pytest

from ampbridge.port import rewriting as rewriting_module
from ampbridge.port.rewriters import REPLACEMENTS
from ampbridge.port.rewriting import rewrite

CORPUS = sorted(Path(__file__).parent.joinpath("corpus").glob("*.py"))

SCRIPT = '''\
#!/usr/bin/env python
"""A script with its own ways."""
from __future__ import annotations
import torch ;  from torch.cuda import amp   # both

def main ( ):
\tscaler = amp.GradScaler( init_scale = 1024. )\t# tabs
\tfor x in data :
\t\twith amp.autocast(use_amp), open("l  x") as f :
\t\t\tloss = f(x)   ;  total += loss
\t\tscaler.scale( loss ).backward( )
\t\tscaler . unscale_(  optimizer  )
\t\tscaler.step(optimizer) ; scaler.update()


\x0c
if __name__ == '__main__' : main()'''

REWRITTEN = '''\
#!/usr/bin/env python
"""A script with its own ways."""
from __future__ import annotations
import torch ;  from torch.cuda import amp   # both
import ampbridge

def main ( ):
\tscaler = ampbridge.GradScaler.like("torch", init_scale=1024.)\t# tabs
\tfor x in data :
\t\twith ampbridge.autocast(ampbridge.Policy("O1" if use_amp else "O0"), backend="torch"), open("l  x") as f :
\t\t\tloss = f(x)   ;  total += loss
\t\tscaler.scale( loss ).backward( )
\t\tscaler.unscale(optimizer)
\t\tscaler.step(optimizer) ; scaler.update()


\x0c
if __name__ == '__main__' : main()'''


def test_a_script_with_its_own_ways():
    assert rewrite(SCRIPT).text == REWRITTEN


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_bytes_stay_as_they_are(tmp_path, newline, encoding):
    path = tmp_path / "script.py"
    cookie = f"# -*- coding: {encoding} -*-{newline}" if encoding == "latin-1" else ""
    text = cookie + SCRIPT.partition("\n")[2].replace("ways", "größe").replace("\n", newline)
    path.write_bytes(text.encode(encoding))
    rewriting = rewrite(path)
    rewriting.save()
    expected = cookie + REWRITTEN.partition("\n")[2].replace("ways", "größe").replace("\n", newline)
    assert path.read_bytes() == expected.encode(encoding)


def test_rewriting_again_changes_nothing():
    once = rewrite(SCRIPT).text
    twice = rewrite(once)
    assert (twice.text, twice.replaced, twice.difference) == (once, (), "")


@pytest.mark.parametrize(
    ("source", "first_lines"),
    {
        "import torch\ntorch.autocast('cuda')\n": "import torch\nimport ampbridge\n",
        "'''Doc.'''\nimport torch\ntorch.autocast('cuda')\n": "'''Doc.'''\nimport torch\nimport ampbridge\n",
        "from __future__ import annotations\nx = 1\nimport torch\ntorch.autocast('cuda')\n": (
            "from __future__ import annotations\nimport ampbridge\nx = 1\n"
        ),
        "# comment\nx = 1\nimport torch\ntorch.autocast('cuda')\n": "# comment\nimport ampbridge\nx = 1\n",
        "import os\n\nimport torch\nimport sys\ntorch.autocast('cuda')\n": (
            "import os\n\nimport torch\nimport ampbridge\nimport sys\n"
        ),
        "import torch\nimport ampbridge\ntorch.autocast('cuda')\n": (
            "import torch\nimport ampbridge\nampbridge."
        ),
        "'Doc'\nimport torch; torch.autocast('cuda')\n": (
            "'Doc'\nimport ampbridge\nimport torch; ampbridge.autocast("
        ),
        "from torch import (\n    autocast,\n)\nautocast('cuda')\n": (
            "from torch import (\n    autocast,\n)\nimport ampbridge\n"
        ),
    }.items(),
)
def test_where_the_import_goes(source, first_lines):
    text = rewrite(source).text
    assert text.startswith(first_lines)
    assert text.count("import ampbridge") == 1
    ast.parse(text)


def test_a_runtime_list_is_translated_as_it_runs():
    source = "import paddle\nwith paddle.amp.auto_cast(custom_black_list=black):\n    pass\n"
    text = rewrite(source).text
    assert "deny=paddle_list(black or ()).canonical" in text
    assert "from ampbridge.policies.paddle_names import paddle_list\n" in text


def test_a_conditional_expression_switches_a_region():
    source = "import paddle\nwith paddle.amp.auto_cast(True if scaler else False, level=level):\n    pass\n"
    text = rewrite(source).text
    assert 'Policy(level if (True if scaler else False) else "O0"' in text
    ast.parse(text)


def test_several_models_in_a_list_by_name_are_left():
    source = (
        "import paddle\n"
        "nets = [generator, critic]\n"
        "nets = paddle.amp.decorate(models=nets, level='O2')\n"
    )
    rewriting = rewrite(source)
    assert rewriting.text == source
    assert "one model" in rewriting.findings[0].message


def test_what_has_no_replacement_is_left_and_said():
    source = "from apex import amp\nmodel, optimizer = amp.initialize(model, optimizer, opt_level='O1')\n"
    rewriting = rewrite(source)
    assert rewriting.text == source
    (finding,) = rewriting.findings
    assert finding.kind == "lost"
    assert finding.place.line == 2
    assert "train_step" in finding.hint


FLEET = """import paddle
from paddle.distributed import fleet
from paddle.distributed.sharding import group_sharded_parallel
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
scaler = fleet.distributed_scaler(scaler)
model, optimizer, scaler = group_sharded_parallel(model, optimizer, "os_g", scaler=scaler)
scaler.unscale_(optimizer)
"""


def test_fleet_s_scaler_is_ours_and_sharded_gradients_are_told_of():
    rewriting = rewrite(FLEET)
    assert "fleet.distributed_scaler" not in rewriting.text  # ours finds the groups by itself
    assert rewriting.text.endswith("scaler.unscale(optimizer)\n")
    (finding,) = rewriting.findings
    assert finding.kind == "lost"
    assert finding.place.text.startswith("group_sharded_parallel(")
    without = rewrite(FLEET.replace(", scaler=scaler", "").replace(", scaler =", " ="))
    assert without.findings == ()


# -- the corpus: whatever is written in a script, only its AMP calls change


class Marking(ast.NodeTransformer):
    """A tree with a name in the place of what begins and ends where a place does."""

    def __init__(self, text, places):
        lines = text.split("\n")
        self.starts = {
            (place.line, len(lines[place.line - 1][: place.column].encode())): place.text
            for place in places
        }

    def visit(self, node):
        if isinstance(node, ast.expr):
            text = self.starts.get((node.lineno, node.col_offset))
            if text is not None and ast.dump(node) == ast.dump(
                ast.parse(f"({text})", "", "eval").body
            ):
                return ast.Name("REPLACED", ast.Load())
        return self.generic_visit(node)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_only_amp_calls_of_the_corpus_change(path, monkeypatch):
    """The trees are the same outside of the replaced calls; so is all text outside of them."""
    real = rewrite(path)
    for name, replacement in REPLACEMENTS.items():
        marked = lambda call, replacement=replacement: replacement(call) and "REPLACED"  # noqa: E731
        monkeypatch.setitem(REPLACEMENTS, name, marked)
    monkeypatch.setattr(rewriting_module, "IMPORTS", {})
    marked = rewrite(path)
    assert marked.replaced == real.replaced
    tree = Marking(real.before, real.replaced).visit(ast.parse(real.before))
    assert ast.dump(ast.parse(marked.text)) == ast.dump(tree)
    pieces = marked.text.split("REPLACED")
    assert len(pieces) == len(real.replaced) + 1
    rest = real.text
    for line in ("import ampbridge\n", "from ampbridge.policies.paddle_names import paddle_list\n"):
        if line not in real.before:
            rest = rest.replace(line, "", 1)
    for piece in pieces:  # comments and formatting, byte for byte
        at = rest.index(piece)
        assert (at == 0) == (piece is pieces[0]) or not piece
        rest = rest[at + len(piece) :]


def test_the_corpus_has_scripts_to_rewrite():
    rewritten = [path for path in CORPUS if rewrite(path).replaced]
    assert len(rewritten) >= 25
