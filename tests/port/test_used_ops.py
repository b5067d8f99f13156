"""The ops that a script names, and the report that shows those alone."""

import ast

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge_port.used_ops import used_ops

MODEL = """
import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from paddle.nn import Conv2D as Convolution

class Net(nn.Layer):
    def __init__(self):
        self.conv, self.norm = Convolution(3, 8, 3), nn.LayerNorm(8)
        self.first = nn.BatchNorm2D(3)

    def forward(self, x, softmax):
        mean = sum(x)  # nobody calls F.exp
        return F.log_softmax(self.norm(self.conv(x)) @ mean).mean()

with paddle.amp.auto_cast(level="O1"):
    loss = Net()(x)
scaled = paddle.amp.GradScaler(init_loss_scaling=1024.0).scale(loss)
"""
NODES = list(ast.walk(ast.parse(MODEL)))
NAMED = {"conv2d", "batch_norm", "layer_norm", "log_softmax", "mean", "matmul"}


def test_functions_methods_and_layers_are_ops():
    """Not what is a name of the script's own, nor a word in a comment."""
    found = used_ops(NODES)
    assert found >= NAMED
    assert not found & {"softmax", "sum", "exp", "conv3d", "lstm"}
    assert found <= op_table.ops().keys()


def test_a_reading_has_them_and_one_of_a_configuration_has_none(tmp_path):
    assert amp.port.read(MODEL).ops == used_ops(NODES)
    file = tmp_path / "rec.yml"
    file.write_text("Global:\n  use_amp: true\n")
    assert amp.port.read(file).ops is None
