# %% [markdown]
# # 4. What keeps small updates
#
# At O2 a model's weights have 16 bits. Lesson 1 showed what happens to a number that is added to a much
# larger one of 16 bits. Here the larger one is a weight, and there are three remedies.

# %%
import ml_dtypes
import numpy as np

import ampbridge as amp
from ampbridge import course, neutral

FRAMEWORK = "numpy"  # or "torch", "tensorflow", "paddle", "jax"

bfloat16 = ml_dtypes.bfloat16

# %% [markdown]
# ## 4.1 The smallest step
#
# A weight is 1 in `bfloat16`, which has 7 bits of fraction. How large must an update be at least, so that
# the weight becomes larger?

# %%
update = ...

# %%
updates = np.arange(1, 4000) / 200_000
moves = (1 + updates).astype(bfloat16).astype(float) > 1
least = updates[moves.argmax()]

# %%
print(course.check("4.1", update, least))

# %% [markdown]
# ## 4.2 Which remedy moves the weights?
#
# We train a small model at O2 with a learning rate of 0.001, so that most updates are smaller than that.
# `masters` says what stands beside a 16-bit weight:
#
# - `"float32"`: a copy in `float32`, which the optimizer updates.
# - `"kahan"`: 16 more bits, which hold what rounding has cut off so far.
# - `"stochastic"`: nothing. A sum is rounded up or down by chance, more often to the nearer number.
# - `None`: nothing. A sum is rounded to the nearest number.
#
# After 100 steps, have `"most"` or `"few"` of the weights moved?

# %%
moved = {"float32": ..., "kahan": ..., "stochastic": ..., "None": ...}


# %%
def share_moved(masters):
    """On NumPy where the framework does not have this kind of masters."""
    backend = amp.backend(FRAMEWORK)
    if masters not in backend.masters:
        backend = amp.backend("numpy")
    model = neutral.mlp(backend, 13, [10], 5)
    optimizer = neutral.optimizer("sgd", model, lr=0.001, momentum=0.0)
    policy = amp.Policy("O2", "bfloat16", masters=masters)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 13)).astype("float32"), rng.integers(5, size=64)

    def weights():
        arrays = backend.read_weights(model).values()
        return np.concatenate([array.ravel() for array in arrays]).astype(
            bfloat16
        )

    before = weights()
    for _ in range(100):
        step(x, y)
    return np.mean(before != weights())


def loss_fn(model, x, y):
    return neutral.cross_entropy(neutral.forward(model, x), y)


shares = {
    str(kind): share_moved(kind)
    for kind in ("float32", "kahan", "stochastic", None)
}
found = {
    kind: "most" if share > 0.5 else "few" for kind, share in shares.items()
}

# %%
print(course.check("4.2", moved, found))

# %% [markdown]
# ## 4.3 What they cost
#
# How many bytes does a weight take, with what stands beside it?

# %%
cost = {"float32": ..., "kahan": ..., "stochastic": ..., "None": ...}

# %%
master, compensation = np.dtype(np.float32), np.dtype(np.int16)
beside = {
    "float32": master.itemsize,
    "kahan": compensation.itemsize,
    "stochastic": 0,
    "None": 0,
}
found = {
    kind: np.dtype(bfloat16).itemsize + size for kind, size in beside.items()
}

# %%
print(course.check("4.3", cost, found))

# %% [markdown]
# ## 4.4 Rounding by chance
#
# The weight 1 gets an update of 0.001. The next number of `bfloat16` is 1 + 2⁻⁷. In how many of 100 cases
# does stochastic rounding go up to it, so that the mean is right?

# %%
cases = ...

# %%
draws = np.random.default_rng(0).random(100_000)
up = draws * 2.0**-7 < 0.001
per_hundred = 100 * np.mean(up)

# %%
print(course.check("4.4", cases, per_hundred))

# %% [markdown]
# ## What to remember
#
# Without a remedy nothing fails, and the model learns too slowly. [Tutorial
# 4](../tutorials/master_weights.py) trains the digits so; [O2 in detail](../o2.md) compares the remedies.
