"""Arguments that are True or False are asked for in the same words, wherever they are."""

import numpy as np
import pytest

import ampbridge as amp

FLAGS = {
    "enabled": lambda toy, **flag: amp.GradScaler(**flag),
    "dynamic": lambda toy, **flag: amp.GradScaler(**flag),
    "name_overflows": lambda toy, **flag: train_step(toy.Model(), toy.Optimizer, **flag),
    "master_grad": lambda toy, **flag: amp.decorate(toy.Model(), policy="O2", **flag),
}


def train_step(model, optimizer, **flag):
    return amp.train_step(lambda model: np.zeros(()), model, optimizer(model), **flag)


@pytest.mark.parametrize("value", ["no", 0, None])
@pytest.mark.parametrize("name", FLAGS)
def test_words_and_numbers_are_refused(name, value, toy):
    with pytest.raises(amp.ArgumentTypeError) as caught:
        FLAGS[name](toy, **{name: value})
    assert str(caught.value) == f"{name} is True or False, not {value!r}.\nHint: {name}=True"


def test_the_same_of_a_recipe():
    with pytest.raises(amp.ArgumentTypeError, match="master_grad is True or False, not 'no'"):
        amp.Recipe(amp.Policy("O2"), master_grad="no")


def test_a_bool_of_numpy_becomes_one_of_python():
    false, true = np.array([False, True])
    assert amp.GradScaler(enabled=false).enabled is False
    assert amp.GradScaler(dynamic=false).config.dynamic is False
    assert amp.Recipe(amp.Policy("O2"), master_grad=true).master_grad is True
