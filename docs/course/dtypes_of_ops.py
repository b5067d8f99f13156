# %% [markdown]
# # 2. Which op runs in what
#
# Autocast chooses a precision for each op that runs. Stanford's CS336 asks which part of a toy model gets
# which on a GPU. ampbridge has the lists of CUDA's autocast as data, so a laptop can answer.

# %%
import re
from importlib import import_module

import numpy as np

import ampbridge as amp
from ampbridge import course, lens, neutral, workloads

FRAMEWORK = "numpy"  # or "torch", "tensorflow", "paddle", "jax"

if FRAMEWORK == "tensorflow":
    from keras import Input, Sequential, layers

    norm = layers.LayerNormalization()
    model = Sequential(
        [Input((64,)), layers.Dense(32, "relu"), norm, layers.Dense(10)]
    )
elif FRAMEWORK == "jax":
    from flax import nnx

    rngs = nnx.Rngs(0)
    first, last = nnx.Linear(64, 32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)
    norm = nnx.LayerNorm(32, rngs=rngs)
    model = nnx.Sequential(first, nnx.relu, norm, last)
else:
    package = "ampbridge_numpy" if FRAMEWORK == "numpy" else FRAMEWORK
    nn = import_module(f"{package}.nn")
    first, last = nn.Linear(64, 32), nn.Linear(32, 10)
    model = nn.Sequential(first, nn.ReLU(), nn.LayerNorm(32), last)


def loss_fn(model, x, y):
    return neutral.cross_entropy(neutral.forward(model, x), y)


x, y = (
    np.random.rand(128, 64).astype("float32"),
    np.random.randint(10, size=128),
)
cuda = amp.Policy("O1", "float16", lists="torch")


def dtypes_by_op(policy, model, x, y):
    """A function from an op's name to the dtypes in which it ran."""
    census = lens.census(loss_fn, model, x, y, policy=policy, passes=1)
    return lambda op: " and ".join(census.dtypes(op))


def stored(array):
    return re.findall(r"b?float\d+", str(array.dtype))[0]


# %% [markdown]
# ## 2.1 A toy model
#
# The model is a linear layer with ReLU, layer norm, and a linear layer that returns the logits. Its
# parameters are `float32`, and the loss is a cross-entropy. Under autocast to `float16`, what is the dtype
# of each of these?

# %%
dtypes = {
    "parameters": ...,
    "output of a linear layer": ...,
    "output of layer norm": ...,
    "logits": ...,
    "loss": ...,
    "gradients of the parameters": ...,
}

# %%
ran = dtypes_by_op(cuda, model, x, y)
parameters = amp.backend(FRAMEWORK).parameters(model)
_, gradients = amp.value_and_grad(loss_fn, model, x, y, policy=cuda)
found = {
    "parameters": stored(parameters[-1]),
    "output of a linear layer": ran("linear"),
    "output of layer norm": ran("layer_norm"),
    "logits": ran("linear"),
    "loss": ran("cross_entropy"),
    "gradients of the parameters": stored(gradients[-1]),
}

# %%
print(course.check("2.1", dtypes, found))

# %% [markdown]
# ## 2.2 Ops on no list
#
# Neither ReLU nor addition is on one of the lists. ReLU takes what a linear layer returns. The residual
# connection of a transformer adds what a linear layer returns to a sum that begins with `float32` embeddings.

# %%
dtypes = {"relu": ..., "residual sum": ...}

# %%
transformer = workloads.find("digits-transformer")(FRAMEWORK, 0)
ran_there = dtypes_by_op(cuda, transformer.model, *transformer.batches[0])
found = {"relu": ran("relu"), "residual sum": ran_there("add")}

# %%
print(course.check("2.2", dtypes, found))

# %% [markdown]
# ## 2.3 Why layer norm is kept in float32
#
# Layer norm computes a variance, a mean of squares. Which is the smallest whole number whose square is
# infinite in `float16`?

# %%
smallest = ...

# %%
with np.errstate(over="ignore"):
    squares = np.arange(1000).astype(np.float16) ** 2
overflow = np.isinf(squares).argmax()

# %%
print(course.check("2.3", smallest, overflow))

# %% [markdown]
# ## 2.4 And with bfloat16?
#
# `bfloat16` has the range of `float32`: no square overflows. In which dtype does autocast to `bfloat16` run
# layer norm?

# %%
dtype = ...

# %%
ran = dtypes_by_op(cuda.replace(dtype="bfloat16"), model, x, y)
of_norm = ran("layer_norm")

# %%
print(course.check("2.4", dtype, of_norm))

# %% [markdown]
# ## What to remember
#
# What is fast in 16 bits is on one list, what sums or exponentiates is on another, and all else follows its
# inputs. `print(lens.census(loss_fn, model, x, y))` shows every op of this model;
# [tutorial 3](../tutorials/o1_and_o2.py) reads such a table.
