"""NumPy's models and torch's in one process: weights, stray tensors; run by test_training_state.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import ampbridge as amp
import ampbridge_numpy as npb
from ampbridge import lens, neutral
from ampbridge_torch.backend import TorchBackend

Backend = TorchBackend()


class NumpyNet(npb.nn.Module):
    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.table = npb.nn.Embedding(7, 12, rng=rng)
        self.convolution = npb.nn.Conv2d(3, 4, 2, rng=rng)
        self.batch_norm = npb.nn.BatchNorm2d(4)
        self.dense = npb.nn.Linear(4, 4, rng=rng)
        self.norm = npb.nn.LayerNorm(4)
        self.head = npb.nn.Linear(4, 2, rng=rng)

    def forward(self, tokens: np.ndarray) -> Any:
        x = self.convolution(anp.reshape(self.table(tokens), (-1, 3, 2, 2)))
        x = anp.reshape(self.batch_norm(x), (-1, 4))
        return self.head(self.norm(npb.nn.gelu(self.dense(x))))


class TorchNet(nn.Module):
    """The same layers under other names; the transposed kernels are square."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 12)
        self.conv = nn.Conv2d(3, 4, 2)
        self.bn = nn.BatchNorm2d(4)
        self.fc1 = nn.Linear(4, 4)
        self.ln = nn.LayerNorm(4)
        self.fc2 = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bn(self.conv(self.embed(tokens).reshape(-1, 3, 2, 2))).reshape(-1, 4)
        return self.fc2(self.ln(F.gelu(self.fc1(x))))


def examples(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 7, 9), rng.standard_normal((9, 2)).astype("f")


def trained(model: Any, optimizer: Any, policy: str) -> Any:
    scaler = amp.GradScaler(2.0**8, growth_interval=3)
    step = amp.train_step(mean_square, model, optimizer, policy=policy, scaler=scaler)
    for number in range(7):
        step(*examples(number))
    return step


def mean_square(model: Any, tokens: Any, y: Any) -> Any:
    return ((model(tokens) - y) ** 2).mean()


def predictions(model: Any) -> np.ndarray:
    model.eval()
    tokens, _ = examples(99)
    if isinstance(model, nn.Module):
        with torch.no_grad():
            return np.asarray(model(torch.from_numpy(tokens)))
    return np.asarray(model(tokens))


@pytest.mark.parametrize("policy", ["O1:float16", "O2:bfloat16"])
def test_weights_of_numpy_give_the_same_predictions(policy: str, tmp_path: Path) -> None:
    source = NumpyNet(5)
    trained(source, npb.optim.SGD(source.parameters(), 0.1, momentum=0.9), policy).save(tmp_path)
    amp.undecorate(source)
    target = TorchNet()
    report = amp.load_weights(tmp_path, target)
    layouts = {match.target.name: (match.source.axes, match.target.axes) for match in report}
    assert layouts["fc1.weight"] == ("io", "oi")
    assert layouts["conv.weight"] == ("oihw", "oihw")
    assert len(report) == len(Backend.weights(target)) == 13
    np.testing.assert_allclose(predictions(target), predictions(source), atol=1e-5, rtol=0)


@pytest.mark.parametrize("policy", ["O1:float16", "O2:bfloat16"])
def test_weights_of_torch_give_the_same_predictions_in_numpy(policy: str, tmp_path: Path) -> None:
    source = TorchNet()
    optimizer = optim.SGD(source.parameters(), 0.1, momentum=0.9)
    step = trained(source, optimizer, policy)
    step.save(tmp_path)
    amp.undecorate(source, optimizer)
    target = NumpyNet(6)
    amp.load_weights(tmp_path, target)
    np.testing.assert_allclose(predictions(target), predictions(source), atol=1e-5, rtol=0)
    scaler = amp.GradScaler()
    scaler.load_state_dict(step.state_dict()["scaler"])
    assert scaler.state_dict() == step.scaler.state_dict()


def test_loaded_weights_reach_the_masters_of_a_decorated_model(tmp_path: Path) -> None:
    source = NumpyNet(5)
    trained(source, npb.optim.SGD(source.parameters(), 0.1), "O0").save(tmp_path)
    target = TorchNet()
    amp.decorate(target, None, "O2:bfloat16")
    amp.load_weights(tmp_path, target)
    amp.undecorate(target)
    np.testing.assert_array_equal(
        target.fc1.weight.detach().numpy(),
        np.asarray(dict(source.named_parameters())["dense.weight"]).T,
    )


class Attending(TorchNet):
    """With a table of places, as Swin's and older BERTs' in a state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("relative_position_index", torch.arange(9).reshape(3, 3))


def test_whole_numbers_of_a_buffer_do_not_stand_in_the_way(tmp_path: Path) -> None:
    source = Attending()
    trained(source, optim.SGD(source.parameters(), 0.1), "O0").save(tmp_path / "torch")
    target = NumpyNet(6)
    report = amp.load_weights(tmp_path / "torch", target)
    assert [weight.name for weight in report.unused] == ["relative_position_index"]
    np.testing.assert_allclose(predictions(target), predictions(source), atol=1e-5, rtol=0)
    trained(target, npb.optim.SGD(target.parameters(), 0.1), "O0").save(tmp_path / "numpy")
    back = Attending()
    report = amp.load_weights(tmp_path / "numpy", back)
    assert [weight.name for weight in report.kept] == ["relative_position_index"]
    assert back.relative_position_index.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    np.testing.assert_allclose(predictions(back), predictions(target), atol=1e-5, rtol=0)


# -- what does not belong together

HINT = "\nHint: pass it as a NumPy array, such as x.numpy()"


def test_tensors_of_another_framework_are_named() -> None:
    logits, labels = np.zeros((4, 3), np.float32), torch.zeros(4, dtype=torch.long)
    with pytest.raises(amp.ArgumentTypeError) as caught:
        neutral.cross_entropy(logits, labels)
    assert str(caught.value) == "Passed labels of torch with logits of numpy." + HINT
    with pytest.raises(amp.ArgumentTypeError) as caught:
        neutral.mse_loss(logits, torch.zeros(4, 3))
    assert str(caught.value) == "Passed target of torch with prediction of numpy." + HINT
    assert float(neutral.mse_loss(torch.ones(4, 3), logits)) == 1.0


def test_a_batch_of_another_framework_is_named() -> None:
    model = neutral.mlp("numpy", 3, [], 2)
    step = amp.train_step(
        lambda model, x: model(x).mean(), model, neutral.optimizer("sgd", model, lr=0.1)
    )
    with pytest.raises(amp.ArgumentTypeError) as caught:
        step(torch.ones(4, 3))
    assert (
        str(caught.value) == "Passed an array (torch.Tensor) of torch with a model of numpy." + HINT
    )
    assert step(np.ones((4, 3), np.float32)).applied


def test_parity_with_a_layer_that_differs() -> None:
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    ours, theirs = (neutral.mlp(name, 6, [8, 8], 5, seed=0) for name in ("numpy", "torch"))
    with torch.no_grad():
        dict(theirs.named_parameters())["3.weight"].mul_(1.01)

    def forward(model: Any, x: Any) -> Any:
        return model(x)

    sides = (forward, ours, "O0"), (forward, theirs, "O0")
    between = lens.parity(*sides, x, weights="own")
    assert between.layers[0].layer == "layers.3"
    assert between.layers[0].part == pytest.approx(1, abs=0.05)
    assert lens.parity(*sides, x).errors[0].relative < 1e-6
