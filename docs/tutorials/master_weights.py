# %% [markdown]
# # 4. Master weights
#
# At O2 a model's parameters are 16 bits wide. Its optimizer should not update those 16 bits directly. This
# page shows what is lost if it does, and the remedy: a second copy of every parameter in `float32`, the
# *master*, which receives the small updates.

# %%
import os

import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np

import ampbridge as amp
from ampbridge import workloads

BACKEND = os.environ.get("AMPBRIDGE_TUTORIAL_BACKEND", "numpy")
native = workloads.of_backend(BACKEND)
bfloat16 = ml_dtypes.bfloat16

# %% [markdown]
# ## Half a unit in the last place
#
# From 1 to 2 the numbers of `bfloat16` are 2⁻⁷ = 0.0078 apart: that is their *unit in the last place*.
# A sum is rounded to the nearest of them. So an update of less than half a unit is rounded away. Repeating
# it does not help, because each update starts from the same weight again.

# %%
low, master = bfloat16(1.0), np.float32(1.0)
for _ in range(100):
    low = bfloat16(float(low) - 0.001)
    master = np.float32(float(master) - 0.001)
print(f"1 - 100 x 0.001 in bfloat16: {float(low):.4f}")
print(f"1 - 100 x 0.001 in a master: {master:.4f}")
print(f"what the model reads of it:  {float(bfloat16(master)):.4f}")

# %% jupyter={"source_hidden": true}
assert low == 1.0
assert abs(master - 0.9) < 1e-5
assert abs(float(bfloat16(master)) - 0.9) < 2.0**-8

# %% [markdown]
# ## How many updates of a real model are that small?
#
# We take the digits' model again, and its very first step with a learning rate of 0.01. For each weight we
# compare the update (learning rate times gradient) with half a unit in the last place of that weight.

# %%
RATE = 0.01
digits = workloads.find("digits-mlp")(BACKEND, 0)
x, y = digits.batches[0]
_, grads = amp.value_and_grad(native.loss, digits.model, x, y, policy="O0")

backend = amp.backend(BACKEND)
stored = backend.read_weights(digits.model)  # NumPy arrays by name
updates = [RATE * np.abs(np.asarray(gradient)) for gradient in grads]
weights = [
    np.abs(stored[name]) for name in backend.parameter_names(digits.model)
]


def half_unit(weight, fraction_bits):
    """Half of the distance to the next number of so many bits of fraction."""
    exponent = np.floor(np.log2(np.maximum(weight, 1e-38)))
    return 2.0 ** (exponent - fraction_bits - 1)


def share_lost(fraction_bits):
    """Of the updates that are not zero."""
    lost = nonzero = 0
    for weight, update in zip(weights, updates, strict=True):
        lost += np.sum(
            (update > 0) & (update < half_unit(weight, fraction_bits))
        )
        nonzero += np.sum(update > 0)
    return lost / nonzero


for name, fraction_bits in (("float32", 23), ("float16", 10), ("bfloat16", 7)):
    lost = share_lost(fraction_bits)
    print(f"updates that {name:8} would round away: {lost:6.1%}")

# %% jupyter={"source_hidden": true}
assert share_lost(7) > 0.9
assert share_lost(23) < 0.05

# %%
# Figure: Histogram of the ratio of update to weight, in powers of two. Most lie between 2^-18
# and 2^-9; vertical lines mark where updates are lost: left of 2^-8 in bfloat16, 2^-11 in
# float16, 2^-24 in float32.
ratios = np.concatenate(
    [
        np.log2(
            update[(update > 0) & (weight > 0)]
            / weight[(update > 0) & (weight > 0)]
        )
        for weight, update in zip(weights, updates, strict=True)
    ]
)
figure, axes = plt.subplots(figsize=(5.6, 2.8))
axes.hist(ratios, range(-30, 1), color="#999999")
for name, unit, colour in (
    ("bfloat16", -8, "#d55e00"),
    ("float16", -11, "#0072b2"),
    ("float32", -24, "#000000"),
):
    axes.axvline(
        unit,
        color=colour,
        linestyle="--",
        label=f"{name}: lost left of $2^{{{unit}}}$",
    )
axes.set_xlabel("update / weight, as a power of two")
axes.set_ylabel("number of weights")
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# (The line marks half a unit for a weight that is a power of two. For other weights it is up to one power
# further to the left.)
#
# ## Two trainings at O2, and one in float32
#
# `"O2"` always means `masters="float32"` in ampbridge. With `None`, the optimizer updates the 16-bit
# parameters directly. Everything else is equal: initial weights, batches, learning rate.

# %%
POLICIES = {
    "float32": amp.Policy("O0"),
    "O2 with masters": amp.Policy("O2", "bfloat16"),
    "O2 without masters": amp.Policy("O2", "bfloat16", masters=None),
}


def train(policy, steps=180):
    """The losses, and the share of the weights that end where they began."""
    digits = workloads.find("digits-mlp")(BACKEND, 0)
    before = backend.read_weights(digits.model)
    optimizer = native.optimizer(digits.model, RATE)
    step = amp.train_step(native.loss, digits.model, optimizer, policy=policy)
    losses = [float(step(x, y).loss) for x, y in digits.first(steps)]
    amp.undecorate(digits.model, optimizer)  # O2 had fitted them to itself
    after = backend.read_weights(digits.model)
    moved = [
        bfloat16_of(before[name]) != bfloat16_of(after[name]) for name in before
    ]
    return losses, 1 - np.mean(np.concatenate([each.ravel() for each in moved]))


def bfloat16_of(array):
    return array.astype(bfloat16)


runs = {name: train(policy) for name, policy in POLICIES.items()}
for name, (losses, stuck) in runs.items():
    print(f"{name:19} last loss {losses[-1]:.3f}, {stuck:5.1%} never moved")

# %%
# Figure: Losses over 180 steps. float32 and O2 with masters fall together from 2.3 to 1.4; O2
# without masters stays above 2.
STYLES = {
    "float32": ("#55555566", "-", 5.0),
    "O2 with masters": ("#0072b2", "-", 1.5),
    "O2 without masters": ("#d55e00", "--", 1.5),
}
figure, axes = plt.subplots(figsize=(5.6, 2.8))
for name, (losses, _) in runs.items():
    color, style, width = STYLES[name]
    axes.plot(losses, style, label=name, color=color, linewidth=width)
axes.set_xlabel("step")
axes.set_ylabel("loss (cross-entropy, nats)")
axes.legend()
plt.show()

# %% jupyter={"source_hidden": true}
last = {name: losses[-1] for name, (losses, _) in runs.items()}
assert abs(last["O2 with masters"] / last["float32"] - 1) < 0.05
assert last["O2 without masters"] > 1.3 * last["float32"]
assert runs["O2 without masters"][1] > 2 * runs["O2 with masters"][1]

# %% [markdown]
# The model without masters is not broken, and nothing is infinite: it learns too slowly, and no error shows
# why. With a larger learning rate the two come closer. But most schedules make the rate small again near
# the end of the training.
#
# ## What masters cost
#
# | bytes for each parameter | O1 | O2 with masters | O2 without |
# |---|---|---|---|
# | the parameter | 4 | 2 | 2 |
# | its master | | 4 | |
#
# With masters, each parameter takes 6 bytes at O2, instead of 4 in `float32`. O2 saves memory and time
# elsewhere: activations are smaller, and weights need no casts in each step.
# ([`lens.worth_it`](../reference/lens.md) measures your own model on your own machine.) If there are
# masters, the optimizer updates them, in `float32`:

# %%
for name, policy in POLICIES.items():
    low, variables = policy.compute_dtype, policy.variable_dtype
    print(f"{name:19} computes in {low}, its optimizer works in {variables}")

# %% jupyter={"source_hidden": true}
assert POLICIES["O2 with masters"].variable_dtype == "float32"
assert POLICIES["O2 without masters"].variable_dtype == "bfloat16"

# %% [markdown]
# ## Summary
#
# - An update under half a unit in the last place of its weight is lost, in every step.
# - At a usual learning rate, most updates are lost in `bfloat16`, and many in `float16`.
# - Masters keep these updates. Two other remedies take less memory, `masters="kahan"` and
#   `masters="stochastic"` ([O2 in detail](../o2.md)). Nothing keeps updates only if you set `masters=None`.
#
# ## Exercises
#
# 1. Train without masters at rates of 0.1 and 0.001. Which share of the weights moves at each?
# 2. Compute `share_lost(7)` for the gradient of a trained model. Is it larger or smaller, and why?
# 3. Round stochastically: up with a probability equal to the remainder, otherwise down. Repeat the first
#    experiment of this page with it, and look at the mean over 1000 such weights.
