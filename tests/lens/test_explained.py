"""``amp.explain`` of a model, and ``ampbridge explain O1 numpy WORKLOAD``."""

import json

import numpy as np
import pytest
from autograd import numpy as anp

import ampbridge as amp
from ampbridge.cli import main
from ampbridge.policies import op_table
from ampbridge_numpy import nn

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


class Net(nn.Module):
    """A hidden layer, a head, and an op with a number."""

    def __init__(self):
        self.first, self.head = nn.Linear(8, 6), nn.Linear(6, 6)

    def forward(self, x, *, times=1):
        hidden = anp.tanh(self.first(x))
        return anp.exp(self.head(hidden)) * times


def test_only_the_ops_of_the_model_in_their_order():
    found = amp.explain(amp.Policy("O1", keep=["head"]), Net(), X)
    assert [row[:4] for row in found.ops] == [
        ("linear", 1, "float16", "O1 allow"),
        ("tanh", 1, "float16", "promote"),
        ("linear", 1, "float32", "kept layer"),
        ("exp", 1, "float32", "O1 deny"),
        ("multiply", 1, "float32", "promote"),
    ]
    assert found.others == len(op_table.ops()) - 4


def test_what_the_table_of_all_ops_says_is_said_of_them():
    policy = amp.Policy("O1", deny=["tanh"])
    every, found = amp.explain(policy, "numpy"), amp.explain(policy, Net(), X)
    for row in found.ops:
        assert (row.by, row.why) == every.op(row.op)[3:]
    assert [row.rule for row in found.ops if row.op == "tanh"] == ["your deny"]


def test_inputs_may_be_named():
    assert amp.explain("O1", Net(), x=X, times=2).ops == amp.explain("O1", Net(), X, times=2).ops


def test_it_prints_as_a_table_and_a_line():
    policy = amp.Policy("O1", lists="paddle")
    lines = str(amp.explain(policy, Net(), X)).splitlines()
    assert lines[0] == "Policy('O1', 'float16', lists='paddle') on numpy (cpu): the ops of Net"
    assert lines[1].split() == ["op", "calls", "dtype", "rule", "by"]
    assert lines[3].split() == ["linear", "2", "float16", "O1", "allow", "ampbridge"]
    assert " ".join(lines).endswith(
        " other ops, and what else the policy does: "
        "amp.explain(amp.Policy('O1', 'float16', lists='paddle'), 'numpy')"
    )


@pytest.mark.parametrize(
    "call, says",
    [
        (
            lambda: amp.explain("O1:bfloat16", Net()),
            "A model is called once to see its ops, and no inputs were passed for that call.\n"
            "Hint: amp.explain('O1:bfloat16', model, x)",
        ),
        (
            lambda: amp.explain("O1", "numpy", X),
            "Only a model is explained with inputs, not 'numpy'.\nHint: amp.explain('O1', model, x)",
        ),
    ],
)
def test_a_model_has_inputs_and_a_backend_has_none(call, says):
    with pytest.raises(amp.ArgumentError) as raised:
        call()
    assert str(raised.value) == says


def test_on_the_command_line(capsys):
    assert main(["explain", "O1", "numpy", "digits-mlp", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(row["op"], row["calls"], row["dtype"]) for row in data["ops"]] == [
        ("flatten", 1, "float32"),
        ("linear", 3, "float16"),
        ("gelu", 2, "float16"),
        ("cross_entropy", 1, "float32"),
    ]
    assert main(["explain", "O1", "numpy", "digits-mlp", "--ops", "tf:MatMul,gelu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:-1]] == ["gelu"]


def test_a_workload_that_is_none(capsys):
    assert main(["explain", "O1", "numpy", "digits-mpl"]) == 1
    assert capsys.readouterr().err.endswith("Hint: digits-mlp\n")
