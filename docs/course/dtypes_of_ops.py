# %% [markdown]
# # 2. Which op runs in what
#
# Autocast leaves a model as it is, and chooses a precision for each op that runs. Stanford's CS336 asks
# which part of a toy model gets which, and its students look it up on a GPU. ampbridge has the lists of
# CUDA's autocast as data, so a laptop can answer, in any framework.

# %%
import re

import numpy as np

import ampbridge as amp
from ampbridge import course, lens, workloads

FRAMEWORK = "numpy"  # or "torch", "tensorflow", "paddle", "jax"

digits = workloads.find("digits-transformer")(FRAMEWORK, 0)
x, y = digits.batches[0]
cuda = amp.Policy("O1", "float16", lists="torch")


def dtypes_by_op(policy):
    """A function from an op's name to the dtypes in which it ran."""
    census = lens.census(
        digits.loss_fn, digits.model, x, y, policy=policy, passes=1
    )
    return lambda op: " and ".join(census.dtypes(op))


def stored(array):
    return re.findall(r"b?float\d+", str(array.dtype))[0]


# %% [markdown]
# ## 2.1 A block of a transformer
#
# The model is one block: attention, then layer norm, a linear layer, GELU and another linear layer, with a
# residual connection around each half. At the end layer norm and a linear layer return the logits. The loss
# is a cross-entropy. All parameters are `float32`. Under autocast to `float16`, what is the dtype of each
# of these?

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
ran = dtypes_by_op(cuda)
parameters = amp.backend(FRAMEWORK).parameters(digits.model)
_, gradients = amp.value_and_grad(
    digits.loss_fn, digits.model, x, y, policy=cuda
)
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
# Neither GELU nor addition is on one of the lists. GELU takes what a linear layer returns. The residual
# connection adds what a linear layer returns to the sum so far, which began with `float32` embeddings.

# %%
dtypes = {"gelu": ..., "residual sum": ...}

# %%
found = {"gelu": ran("gelu"), "residual sum": ran("add")}

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
first = np.isinf(squares).argmax()

# %%
print(course.check("2.3", smallest, first))

# %% [markdown]
# ## 2.4 And with bfloat16?
#
# `bfloat16` has the range of `float32`: no square overflows. In which dtype does CUDA's autocast to
# `bfloat16` run layer norm?

# %%
dtype = ...

# %%
ran = dtypes_by_op(cuda.replace(dtype="bfloat16"))
norm = ran("layer_norm")

# %%
print(course.check("2.4", dtype, norm))

# %% [markdown]
# ## What to remember
#
# What is fast in 16 bits is on the one list, what sums or exponentiates is on the other, and all else
# follows its inputs. `print(lens.census(digits.loss_fn, digits.model, x, y))` shows every op of this model;
# [tutorial 3](../tutorials/o1_and_o2.py) reads such a table.
