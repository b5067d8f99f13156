"""Rewritten scripts: AMP calls are ampbridge's, and nothing else has changed."""

import ast
import re

import pytest
from foreign_scripts import CORPUS, SCRIPTS, rewriting_of

from ampbridge.cli import main
from ampbridge_port import rewriting as rewriting_module
from ampbridge_port.reader.dialects import DIALECTS
from ampbridge_port.rewriters import REPLACEMENTS, STAYS, keras
from ampbridge_port.rewriting import rewrite

IMPORTS = tuple(rewriting_module.IMPORTS.values())
BY_CALLS = [path for path in SCRIPTS if not path.stem.startswith(("keras", "tf", "torch_partial"))]

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


def test_a_conditional_list_is_translated_as_a_whole():
    source = "import paddle\nr = paddle.amp.auto_cast(custom_black_list=a if o2 else None)\n"
    assert "deny=paddle_list((a if o2 else None) or ()).canonical" in rewrite(source).text


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


APEX = """from apex import amp
import torch
model, optimizer = amp.initialize(model, optimizer, opt_level='O1')
for x, y in loader:
    loss = loss_fn(model(x), y)
    with amp.scale_loss(loss / 2, optimizer) as scaled:
        scaled.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
"""

ACCELERATE = """from accelerate import Accelerator
accelerator = Accelerator(mixed_precision='fp16', cpu=False)
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

LIGHTNING = """import lightning.pytorch as pl
trainer = pl.Trainer(max_epochs=2, precision="16-mixed")
"""

TORCHAO = """from torchao.optim import AdamW8bit
optimizer = AdamW8bit(model.parameters())
"""

GRAPH = """import tensorflow as tf
opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
"""

LOOP = """import keras
keras.mixed_precision.set_global_policy("mixed_float16")
model = build()
opt = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=9)
scaled = opt.get_scaled_loss(loss)
"""

JMP = """import jmp
import optax
from flax import nnx
policy = jmp.get_policy("c=bf16")
model = nnx.Linear(2, 2, dtype="bfloat16", rngs=rngs)
head = nnx.Linear(2, 2, rngs=rngs)
tx = optax.chain(optax.clip(1.0), optax.sgd(0.1))
out = policy.cast_to_output(head(x))
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            JMP,
            {
                4: "ampbridge.train_step(loss_fn, model, optimizer, recipe=recipe)",
                5: "take dtype out",
                8: "head(x): the step's policy casts.",
            },
        ),
        (APEX, dict.fromkeys((3, 6, 8), "--to toml, and the loop with ampbridge.train_step")),
        (
            ACCELERATE.replace("'fp16'", "args.precision"),
            {2: 'ampbridge_torch.accelerate.Accelerator("O1", scaler=ampbridge.GradScaler.like('},
        ),
        (ACCELERATE.replace("'fp16'", "'fp16', **more"), {2: "Accelerator"}),
        (
            ACCELERATE.replace(
                "Accelerator\n", "Accelerator\nclass A(Accelerator): pass\n"
            ).replace("= Accelerator(", "= A("),
            {3: "derive your class from ampbridge_torch.accelerate.Accelerator"},
        ),
        (LIGHTNING.replace('"16-mixed"', '"16-true"'), {2: "plugins=[ampbridge_torch.lightning."}),
        (LIGHTNING.replace("max_epochs=2", 'strategy="fsdp"'), {2: "in the place of precision"}),
        (
            "from transformers import TrainingArguments\nargs = TrainingArguments('out', bf16=True)\n",
            {
                2: 'take bf16 out, and ampbridge_torch.transformers.Trainer(..., policy="O1:bfloat16")'
            },
        ),
        (GRAPH, {2: "ampbridge.train_step"}),
        (TORCHAO.replace("()", "(), bf16_stochastic_round=True"), {2: "masters='stochastic'"}),
        (
            LOOP,
            {
                2: 'ampbridge.decorate(model, policy=ampbridge.Policy("O2", lists="tensorflow"))',
                4: "ampbridge_tensorflow.LossScaleOptimizer(keras.optimizers.SGD(0.1), "
                'ampbridge.GradScaler.like("keras", growth_interval=9))',
                5: "opt.scale_loss(loss)",
            },
        ),
    ],
)
def test_what_has_no_replacement_is_left_and_each_line_said(source, expected):
    rewriting = rewrite(source)
    assert (rewriting.text, rewriting.replaced, rewriting.difference) == (source, (), "")
    hints = {found.place.line: found.hint for found in rewriting.findings}
    assert hints.keys() == expected.keys()
    for line, hint in expected.items():
        assert hint in hints[line]
    assert {found.kind for found in rewriting.findings} == {"lost"}


SCALER = 'ampbridge.GradScaler.like("torch")'


@pytest.mark.parametrize(
    ("source", "line", "written"),
    [
        (
            ACCELERATE,
            "accelerator = Accelerator(mixed_precision='fp16', cpu=False)",
            "accelerator = ampbridge_torch.accelerate.Accelerator("
            f'policy="O1", scaler={SCALER}, cpu=False)',
        ),
        (
            ACCELERATE.replace("fp16", "bf16"),
            "accelerator = Accelerator(mixed_precision='bf16', cpu=False)",
            'accelerator = ampbridge_torch.accelerate.Accelerator(policy="O1:bfloat16", cpu=False)',
        ),
        (
            LIGHTNING,
            'trainer = pl.Trainer(max_epochs=2, precision="16-mixed")',
            "trainer = pl.Trainer(max_epochs=2, plugins=[ampbridge_torch.lightning.AmpBridge("
            f'"O1", scaler={SCALER})])',
        ),
        (
            LIGHTNING.replace('"16-mixed"', '"bf16", strategy="ddp"'),
            'trainer = pl.Trainer(max_epochs=2, precision="bf16", strategy="ddp")',
            'trainer = pl.Trainer(max_epochs=2, plugins=[ampbridge_torch.lightning.AmpBridge("O1:bfloat16")]'
            ', strategy="ddp")',
        ),
    ],
)
def test_training_loops_of_others_change_in_one_call(source, line, written):
    rewriting = rewrite(source)
    changed = [each for each in rewriting.difference.splitlines()[3:] if each[0] in "+-"]
    imports = [each for each in changed if each.startswith("+import ampbridge")]
    assert imports[-1].startswith("+import ampbridge_torch.")
    assert [each for each in changed if each not in imports] == [f"-{line}", f"+{written}"]


@pytest.mark.parametrize(
    "source",
    [
        ACCELERATE.replace("fp16", "no"),
        LIGHTNING.replace("16-mixed", "32-true"),
        TORCHAO,
        LOOP.partition("opt =")[0].replace("mixed_float16", "float32"),
    ],
)
def test_what_trains_in_float32_has_nothing_to_replace(source):
    assert rewrite(source).findings == ()
    assert rewrite(source).text == source


def test_every_known_call_is_replaced_told_of_or_stays():
    names = {name for dialect in DIALECTS for name in dialect.calls}
    known = {*REPLACEMENTS, *keras._how([]), *(name for name in names if STAYS.fullmatch(name))}
    handled_by_another_rule = re.compile(
        r"torch\.distributed\.fsdp\.|paddle\.(static|fluid)\.|tensorflow\.|mmengine\.|keras\.mixed"
        r"|paddle\.amp\.\w+\.(get|set)_init_loss_scaling|apex\.|accelerate\.Autocast"
        r"|paddle\.distributed\.fleet\.DistributedStrategy\.amp|deepspeed|lightning\.pytorch\.plugins"
        r"|torchtitan|torchao\.float8"
    )
    assert [n for n in sorted(names - known) if not handled_by_another_rule.match(n)] == []


FLEET = """import paddle
from paddle.distributed import fleet
from paddle.distributed.sharding import group_sharded_parallel
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
scaler = fleet.distributed_scaler(scaler)
model, optimizer, scaler = group_sharded_parallel(model, optimizer, "os_g", scaler=scaler)
scaler.unscale_(optimizer)
"""


def test_fleet_s_scaler_is_ours_and_sharded_gradients_are_refused():
    rewriting = rewrite(FLEET)
    (finding,) = rewriting.findings  # docs/distributed.md: gradients in buffers of their own
    assert finding.kind == "lost"
    assert finding.place.text.startswith("group_sharded_parallel(")
    assert rewriting.text == FLEET
    without = rewrite(FLEET.replace(", scaler=scaler", "").replace(", scaler =", " ="))
    assert without.findings == ()
    assert "fleet.distributed_scaler" not in without.text  # ours finds the groups by itself
    assert without.text.endswith("scaler.unscale(optimizer)\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("loss = model.train_batch([x, y], optimizer, schedule, scaler)", "to_native"),
        ("loss = model.train_batch([x, y], optimizer, scaler=scaler)", "to_native"),
        ("strategy.hybrid_configs['sharding_configs'].split_param = True", "stage 1"),
        ("strategy.hybrid_configs = {'sharding_configs': {'comm_overlap': True}}", "stage 1"),
    ],
)
def test_what_docs_refuse_of_fleet_is_not_written(line, says):
    source = FLEET.partition("model, optimizer")[0] + line + "\n"
    rewriting = rewrite(source)
    (finding,) = rewriting.findings
    assert (finding.place.line, rewriting.text) == (6, source)
    assert says in finding.hint
    harmless = source.replace("True", "False").replace(", scaler)", ")").replace("scaler=", "s=")
    assert rewrite(harmless).findings == ()


def test_keras_guide_with_fit():
    rewriting = rewriting_of(CORPUS / "keras_guide_fit.py")
    policy = 'ampbridge.Policy("O2", lists="tensorflow", keep=["predictions"])'
    inner = "keras.optimizers.RMSprop()"
    changed = [
        line for line in rewriting.difference.splitlines()[3:] if line.startswith(("+", "-"))
    ]
    assert changed == [
        "+import ampbridge",
        "+import ampbridge_tensorflow",
        "-mixed_precision.set_global_policy(policy)",
        "-model.compile(loss='sparse_categorical_crossentropy',",
        f"-              optimizer={inner},",
        f"+ampbridge.decorate(model, policy={policy}).compile(loss='sparse_categorical_crossentropy',",
        f"+              optimizer=ampbridge_tensorflow.LossScaleOptimizer({inner}, "
        'ampbridge.GradScaler.like("keras")),',
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "if fp16: {}",
        "{}; x = 1",
        "def f():\n    {}\nf()",
        "if __name__ == '__main__':\n    {}",
        "with strategy.scope():\n    {}",
    ],
)
def test_a_policy_is_taken_out_where_it_is_a_statement_of_its_own(statement):
    call = 'keras.mixed_precision.set_global_policy("mixed_bfloat16")'
    source = (
        f"import keras\n{statement.format(call)}\nm = keras.Sequential(ls)\nm.compile(opt, 'mse')\n"
    )
    rewriting = rewrite(source)
    if "fp16" in statement:
        assert rewriting.text == source
        assert "depends on a condition" in rewriting.findings[0].message
    else:
        policy = 'ampbridge.Policy("O2", "bfloat16", lists="tensorflow")'
        assert f"\nampbridge.decorate(m, policy={policy}).compile(opt, 'mse')\n" in rewriting.text
        assert statement.format("pass") in rewriting.text


def test_an_optimizer_by_its_name_is_made():
    source = (
        "import tensorflow as tf\ntf.keras.mixed_precision.set_global_policy('mixed_float16')\n"
    )
    text = rewrite(source + "m = tf.keras.Sequential(ls)\nm.compile('adam', loss='mse')\n").text
    assert text.startswith(
        "import tensorflow as tf\nimport ampbridge\nimport ampbridge_tensorflow\nimport keras\nm ="
    )
    assert (
        "ampbridge_tensorflow.LossScaleOptimizer(keras.optimizers.get('adam'), "
        'ampbridge.GradScaler.like("keras"))' in text
    )


# -- complete, or not at all

IN_A_BRANCH = """import paddle
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
if level == "O2":
    model, opt = paddle.amp.decorate(models=model, optimizers=opt, level="O2")
for x, y in loader:
    with paddle.amp.auto_cast(level=level):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update(); opt.clear_grad()
"""


def test_what_stands_in_a_branch_is_replaced_too():
    text = rewrite(IN_A_BRANCH).text
    policy = 'ampbridge.Policy("O2", lists="paddle")'
    assert f"    model, opt = ampbridge.decorate(model, opt, {policy})\n" in text
    assert "paddle.amp" not in text


TORCH = """import torch
from contextlib import nullcontext
from functools import partial
scaler = torch.amp.GradScaler("cuda")
{}
with torch.autocast("cuda"):
    loss = model(x)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""


@pytest.mark.parametrize(
    ("lines", "says", "hint"),
    [
        ("class Mine(torch.amp.GradScaler): pass", "not called here", "ampbridge.GradScaler"),
        ("isinstance(scaler, torch.amp.GradScaler)", "not called here", "ampbridge.GradScaler"),
        ("region = enter(torch.autocast, 'cuda')", "not called here", "ampbridge.autocast"),
        ("unscale = map(scaler.unscale_, optimizers)", "not called here", "unscale()"),
        ("other.unscale_(optimizer)", "another file", "unscale() in each"),
        ("options = {}; torch.autocast(**options)", "options holds", "write the arguments out"),
        ("scaler._scale = torch.tensor(128.0)", "no such attribute", "scaler.update(new_scale)"),
        ("scaler.get_backoff()", "no such attribute", "scaler.get_scale()"),
        (
            "def region(device): return nullcontext()\nif amp: region = torch.autocast\nregion('cuda')",
            "may be a function of the script",
            "ampbridge.autocast in each branch",
        ),
        (
            "region = torch.autocast if amp else nullcontext\nregion('cuda')",
            "may be something else",
            "ampbridge.autocast in each branch",
        ),
        (
            "from torch import autocast\ndef run(autocast): return autocast('cuda')",
            "may be something else",
            "ampbridge.autocast in each branch",
        ),
        (
            "region = partial(torch.autocast, 'cuda')\nregion(dtype=torch.bfloat16)",
            "passes more to a functools.partial",
            "in each branch",
        ),
        (
            "if new: from torch.amp import GradScaler\nelse: from torch.cuda.amp import GradScaler\n"
            "GradScaler(1024.0)",
            "may be torch.amp.GradScaler or torch.cuda.amp.GradScaler",
            "ampbridge.GradScaler in each branch",
        ),
    ],
)
def test_one_line_that_cannot_be_replaced_keeps_all_of_the_script(lines, says, hint):
    source = TORCH.format(lines)
    rewriting = rewrite(source)
    assert (rewriting.text, rewriting.replaced) == (source, ())
    (finding,) = rewriting.findings
    assert finding.place.text in lines
    assert says in finding.message
    assert hint in finding.hint
    assert rewrite(TORCH.format("pass")).text != TORCH.format("pass")


SCALER = 'ampbridge.GradScaler.like("torch")'
REGION = 'ampbridge.autocast(ampbridge.Policy("O1"), backend="torch")'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(scaler): scaler.unscale_(o)\nscaler = S()\nspawn(f)", "scaler.unscale(o)"),
        ("def f():\n    global s\n    s = S()\ndef g(): s.unscale_(o)\ns = None", "s.unscale(o)"),
        ("s, x = S(), 1\ns.unscale_(o)", "s.unscale(o)"),
        ("s = S() if amp else None\nif s: s.unscale_(o)", "s.unscale(o)"),
        ("s = copy.deepcopy(S())\ns.unscale_(o)", "s.unscale(o)"),
        ("from torch.cuda.amp import *\nwith autocast(): pass", f"with {REGION}: pass"),
        ("with getattr(torch.cuda.amp, 'autocast')(): pass", f"with {REGION}: pass"),
        (
            "try: from torch.cuda.amp import autocast\nexcept ImportError:\n    def autocast(): pass\n"
            "with autocast(): pass",
            f"with {REGION}: pass",
        ),
        (
            "region = suppress\nif amp: region = partial(torch.autocast, 'cuda')\nwith region(): pass",
            'partial(ampbridge.autocast, ampbridge.Policy("O1"), backend="torch")\nwith region()',
        ),
        ("def f(s: torch.amp.GradScaler): pass\nS()", SCALER),
        (
            "class T:\n    def autocast(self): return torch.autocast('cuda')\nwith T().autocast(): pass",
            f"return {REGION}\nwith T()",
        ),
        (
            "\n".join(f"v{n} = v{n - 1}" for n in range(1, 99)) + "\nv0 = S()\nv98.unscale_(o)",
            "v98.unscale(o)",
        ),
        ("m = torch\nwhile True: m = m.parent\nm.step()\nS()", SCALER),
        ("s = S()\nwhile True: s = s.parent or other(s)\ns.unscale_(o)", "s.unscale(o)"),
    ],
)
def test_a_name_stands_for_all_that_it_may_be(before, after):
    start = "import torch, copy\nfrom functools import partial\nfrom contextlib import suppress\n"
    rewriting = rewrite(start + before.replace("S()", "torch.amp.GradScaler('cuda')") + "\n")
    assert not rewriting.findings
    assert after in rewriting.text
    assert "unscale_" not in rewriting.text


@pytest.mark.parametrize(
    "lines",
    [
        "scalers = [S()]\nfor s in scalers: s.unscale_(o)",
        "scalers = {}\nscalers['g'] = S()\nscalers['g'].unscale_(o)",
        "def f(s): s.unscale_(o)\nf(S())",
        "class T:\n    def __init__(self, s): self.s = s\nt = T(S())\nt.s.unscale_(o)",
        "class T:\n    @property\n    def s(self): return S()\nt.s.unscale_(o)",
        "scaler = S()\nscalers = [scaler]\nscalers[0].is_enabled()",
    ],
)
def test_a_script_whose_scaler_is_not_followed_is_left(lines):
    source = f"import torch\n{lines}\n".replace("S()", "torch.amp.GradScaler('cuda')")
    rewriting = rewrite(source)
    assert rewriting.text == source
    assert any("not followed to here" in found.message for found in rewriting.findings)


@pytest.mark.parametrize(
    "lines",
    ["def f(p):\n    {}", "for p in policies:\n    {}", "p, x = settings()\n{}", "p += x\n{}"],
)
def test_a_name_may_be_what_something_else_binds_to_it(lines):
    policy = lines.format("keras.config.set_dtype_policy(p)")
    source = f"import keras\np = 'mixed_float16'\n{policy}\nm = keras.Sequential(x)\nm.compile(o, 'mse')\n"
    rewriting = rewrite(source)
    assert rewriting.text == source
    assert rewriting.findings


def test_a_partial_by_its_whole_name_is_replaced():
    source = "import torch, functools\nr = functools.partial(torch.autocast, 'cuda')\n"
    written = 'functools.partial(ampbridge.autocast, ampbridge.Policy("O1"), backend="torch")\n'
    assert rewrite(source).text.endswith(f"r = {written}")


def test_torch_is_paddle_once_it_is_made_compatible():
    lines = (
        "import paddle",
        "paddle.enable_compat()",
        "import torch",
        "with torch.autocast('cuda'):",
    )
    policy = 'ampbridge.Policy("O1", lists="paddle")'
    source = "\n".join((*lines, "    pass\n"))
    assert f'with ampbridge.autocast({policy}, backend="paddle"):' in rewrite(source).text
    assert 'backend="torch"' in rewrite(source.replace("enable", "disable")).text


SUMMED = """import torch
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_what_a_recipe_cannot_express_is_not_lost_from_a_script(tmp_path, capsys):
    """The loop is kept: it sums gradients as before, and nobody is told to change that."""
    script = tmp_path / "train.py"
    script.write_text(SUMMED)
    assert main(["port", str(script), "--to", "toml", "--strict"]) == 3
    assert "lost: " in capsys.readouterr().err
    assert main(["port", str(script), "--to", "ampbridge", "--strict"]) == 0
    told = capsys.readouterr().err
    assert "lost: " not in told
    assert "Hint" not in told
    assert "sum" in told


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


@pytest.mark.parametrize("path", BY_CALLS, ids=lambda path: path.stem)
def test_only_amp_calls_of_the_corpus_change(path, monkeypatch):
    """The trees are the same outside of the replaced calls; so is all text outside of them."""
    real = rewriting_of(path)
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
    for line in IMPORTS:
        if line not in real.before:
            rest = rest.replace(f"{line}\n", "", 1)
    for piece in pieces:  # comments and formatting, byte for byte
        at = rest.index(piece)
        assert (at == 0) == (piece is pieces[0]) or not piece
        rest = rest[at + len(piece) :]


def test_the_corpus_has_scripts_to_rewrite():
    rewritten = [path for path in SCRIPTS if rewriting_of(path).replaced]
    assert len(rewritten) >= 25
