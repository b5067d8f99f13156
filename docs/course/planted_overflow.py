# %% [markdown]
# # 6. Find the overflow
#
# Somebody has added a column to the data: when each image was taken, in seconds since 1970. In `float32`
# the loss is finite. In `float16` no step is applied. Find out why, and cure it.

# %%
import ml_dtypes
import numpy as np

import ampbridge as amp
from ampbridge import course, lens, workloads

FRAMEWORK = "numpy"  # or "torch", "tensorflow", "paddle", "jax"

np.seterr(all="ignore")  # infinity is what we are looking for
digits = workloads.find("digits-mlp")(FRAMEWORK, 0)
x, y = digits.batches[0]
times = 1.7e9 + 3600 * np.arange(len(x))
x = x.copy()
x[:, 0, 0, 0] = times  # the pixel in the corner is always empty

# %% [markdown]
# ## 6.1 Wait for the loss scale?
#
# Each step that overflows is skipped and halves the scale, from 65536. How many of the first six steps are
# applied?

# %%
applied = ...

# %%
step = amp.train_step(
    digits.loss_fn, digits.model, digits.optimizer, policy="O1"
)
steps = sum(step(x, y).applied for _ in range(6))

# %%
print(course.check("6.1", applied, steps))

# %% [markdown]
# ## 6.2 Where it begins
#
# `lens.locate` looks for the first value that is infinite in `float16` and finite in `float32`. Is it the
# result of `"linear"`, of `"gelu"`, of `"cross_entropy"`, or of the `"cast"` of an op's input to `float16`?

# %%
op = ...

# %%
finding = lens.locate(digits.loss_fn, digits.model, x, y, policy="O1")
begun = finding.op

# %%
print(course.check("6.2", op, begun))

# %% [markdown]
# ## 6.3 Cures
#
# With which of these is the loss `"finite"`, and with which not (`"infinite"`, or NaN)? The last one
# subtracts the mean of the column, and divides by its standard deviation.

# %%
losses = {
    "a loss scale of 1": ...,
    "bfloat16": ...,
    "deny linear": ...,
    "a normalised column": ...,
}

# %%
normalised = x.copy()
normalised[:, 0, 0, 0] = (times - times.mean()) / times.std()
linear_denied = amp.Policy("O1", deny=["linear"])
trials = {
    "a loss scale of 1": ("O1", x),
    "bfloat16": ("O1:bfloat16", x),
    "deny linear": (linear_denied, x),
    "a normalised column": ("O1", normalised),
}


def outcome(policy, x):
    scaler = amp.GradScaler(1.0)
    loss, _ = amp.value_and_grad(
        digits.loss_fn, digits.model, x, y, policy=policy, scaler=scaler
    )
    return "finite" if np.isfinite(float(loss)) else "infinite"


found = {name: outcome(*trial) for name, trial in trials.items()}

# %%
print(course.check("6.3", losses, found))

# %% [markdown]
# ## 6.4 What bfloat16 makes of it
#
# Nothing is infinite in `bfloat16`. The times lie between 2³⁰ and 2³¹. How many days apart are two
# neighbouring numbers of `bfloat16` there?

# %%
days = ...

# %%
seconds = np.arange(2.0**30, 2.0**31, 3600)
numbers = np.unique(seconds.astype(ml_dtypes.bfloat16).astype(float))
apart = np.diff(numbers).max() / 86400

# %%
print(course.check("6.4", days, apart))

# %% [markdown]
# ## What to remember
#
# `print(finding)` shows what the lens found, and a change of the policy that it has tried. The best
# cure is none of the policy's: nothing can be learnt from numbers so large, and a normalised column keeps
# what is in it. [Tutorial 6](../tutorials/softmax.py) locates an overflow
# that begins in the lists.
