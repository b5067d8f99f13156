# %% [markdown]
# # 2. Why losses are scaled
#
# `float16` has no numbers between 0 and 6·10⁻⁸. Gradients are often smaller. Here you watch them vanish,
# see a training run fail because of it, and fix it with one multiplication.
#
# The page runs on NumPy. To run it on another framework, set `AMPBRIDGE_TUTORIAL_BACKEND` to `torch`,
# `tensorflow`, `paddle` or `jax`.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np

import ampbridge as amp
from ampbridge import lens, workloads

BACKEND = os.environ.get("AMPBRIDGE_TUTORIAL_BACKEND", "numpy")
native = workloads.of_backend(BACKEND)  # its own models, losses, optimizers

# %% [markdown]
# ## A loss that averages over many outputs
#
# The model is small: it classifies handwritten digits of 8 x 8 pixels with two hidden layers. Its loss
# is the mean over a batch of 128. Large models average over many more outputs. A segmentation of 64 images
# of 512 x 512 pixels has 2²⁴ outputs, and the gradient of each is divided by that number. To get such
# gradients here, we divide the loss by the missing factor of 2¹⁷. With a learning rate that is 2¹⁷ times
# larger, the training is the same, except for rounding:

# %%
SHRINK = 2.0**-17


def small_loss(model, x, y):
    """The loss, as if the mean were over 2^24 outputs."""
    return native.loss(model, x, y) * SHRINK


def new_digits():
    """From seed 0: the same numbers in every framework."""
    digits = workloads.find("digits-mlp")(BACKEND, 0)
    return digits, native.optimizer(digits.model, 0.1 / SHRINK)


def train(policy, scaler, steps=60):
    """The result of every step."""
    digits, optimizer = new_digits()
    step = amp.train_step(
        small_loss, digits.model, optimizer, policy=policy, scaler=scaler
    )
    return [step(x, y) for x, y in digits.first(steps)]


def losses(results):
    return np.array([float(result.loss) / SHRINK for result in results])


# %% [markdown]
# ## Gradients underflow
#
# `amp.value_and_grad` computes loss and gradients under a policy. `"O0"` is `float32` throughout, and
# serves as the reference here. `"O1"` runs matrix products in `float16`.

# %%
digits, _ = new_digits()
x, y = digits.batches[0]
names = amp.backend(BACKEND).parameter_names(digits.model)


def gradients(policy, scaler=None):
    _, grads = amp.value_and_grad(
        small_loss, digits.model, x, y, policy=policy, scaler=scaler
    )
    return [np.asarray(gradient) for gradient in grads]


true = gradients("O0")
low = gradients("O1")
lost = [np.mean((b == 0) & (a != 0)) for a, b in zip(true, low, strict=True)]
for name, share in zip(names, lost, strict=True):
    print(f"{name:32} {share:6.1%} of the gradient became zero")

# %% jupyter={"source_hidden": true}
# Of every parameter but the last bias more than half is gone.
assert min(lost[:-1]) > 0.5

# %% [markdown]
# How large are these gradients? Nearly all of them are below the smallest number of `float16`:


# %%
# Figure: Histogram of the magnitudes of all gradients, in powers of two. They spread around
# 2^-28, nearly all to the left of 2^-24, below which float16 has zero; the same histogram moved
# by 2^16 lies within the normal range of float16, under its largest number.
def magnitudes(grads):
    values = np.abs(np.concatenate([gradient.ravel() for gradient in grads]))
    return np.log2(values[values > 0])


SCALE = 2.0**16
figure, axes = plt.subplots(figsize=(5.6, 2.8))
axes.axvspan(-14, 16, color="#009e73", alpha=0.2, label="float16, normal")
axes.axvspan(-24, -14, color="#e69f00", alpha=0.2, label="float16, subnormal")
bins = range(-56, 20)
axes.hist(magnitudes(true), bins, color="#555555", label="gradients")
axes.hist(
    magnitudes(true) + np.log2(SCALE),
    bins,
    color="#0072b2",
    label="gradients × 2¹⁶",
)
axes.set_xlim(-56, 18)
axes.set_xlabel("magnitude, as a power of two")
axes.set_ylabel("number of gradient values")
axes.legend(loc="upper left", fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true}
assert np.mean(magnitudes(true) < -24) > 0.8
assert np.all(magnitudes(true) + np.log2(SCALE) < 16)

# %% [markdown]
# The gradients of the parameters are only the last results of the backward pass. It also computes the
# gradient of each op's output. `lens.ranges` measures all of them in `float32`, and shows how many of them
# `float16` would lose:

# %%
found = lens.ranges(small_loss, digits.model, x, y, scale=1.0)
print(found)

# %% jupyter={"source_hidden": true}
low_rows = [row for row in found.rows if row.dtype == "float16"]
assert all(row.values.flushed == 0 for row in low_rows if row.kind == "output")
assert all(
    row.values.flushed > 0.85 for row in low_rows if row.kind == "gradient"
)
assert found.safe_scale is not None

# %% [markdown]
# The rows "output" show the forward pass, which loses nothing. The backward pass does not fit: of the
# gradients that are computed in `float16`, nine in ten are lost at the last layer, and all of them at the
# first.
#
# ## One multiplication moves them all
#
# Differentiation is linear: if you multiply the loss by 2¹⁶, every gradient of the backward pass is
# multiplied by 2¹⁶ too. Before the optimizer uses the gradients, they are divided by 2¹⁶ again, in
# `float32`. Multiplying by a power of two changes only the exponent, so nothing is rounded.
# `amp.GradScaler` multiplies. In a training step it also divides; here we divide ourselves.

# %%
scaled = [
    gradient / SCALE for gradient in gradients("O1", amp.GradScaler(SCALE))
]
left = [np.mean((b == 0) & (a != 0)) for a, b in zip(true, scaled, strict=True)]


def relative_error(grads):
    """Of all gradients together, against float32."""
    difference = sum(
        np.sum((a - b) ** 2) for a, b in zip(grads, true, strict=True)
    )
    return np.sqrt(difference / sum(np.sum(a**2) for a in true))


for name, shares, grads in (("unscaled", lost, low), ("scaled", left, scaled)):
    error = relative_error(grads)
    print(f"{name:9} {np.mean(shares):6.1%} lost, gradient off by {error:.2%}")

# %% jupyter={"source_hidden": true}
assert relative_error(low) > 0.1
assert relative_error(scaled) < 0.005
assert max(left) < 0.01

# %% [markdown]
# ## The effect on training
#
# We train four times from equal weights, on equal batches. `scaler="auto"`, the default, creates a
# `GradScaler` if the policy needs one. `scaler=None` trains without one, and gives a warning.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", amp.AmpBridgeWarning)
    runs = {
        "float32": train("O0", None),
        "float16, unscaled": train("O1", None),
        "float16, scaled": train("O1", "auto"),
        "bfloat16, unscaled": train("O1:bfloat16", None),
    }
for name, results in runs.items():
    first, *_, last = losses(results)
    print(f"{name:20} first loss {first:.3f}, last {last:.3f}")
warned = [
    str(each.message) for each in caught if "loss scaling" in str(each.message)
]
print("warned:", warned[0])

# %% jupyter={"source_hidden": true}
assert "gradients under 6e-8 become zero" in warned[0]

# %%
# Figure: Losses over 60 steps. float32, scaled float16 and bfloat16 fall together to about 0.3.
# Unscaled float16 does not fall.
STYLES = {
    "float32": ("#55555566", "-", 5.0),
    "float16, unscaled": ("#d55e00", "--", 1.5),
    "float16, scaled": ("#0072b2", "-", 1.5),
    "bfloat16, unscaled": ("#009e73", ":", 2.5),
}
figure, axes = plt.subplots(figsize=(5.6, 2.8))
for name, results in runs.items():
    color, style, width = STYLES[name]
    axes.plot(losses(results), style, label=name, color=color, linewidth=width)
axes.set_xlabel("step")
axes.set_ylabel("loss (cross-entropy, nats)")
axes.set_ylim(0, 4)
axes.legend()
plt.show()

# %% jupyter={"source_hidden": true}
last = {name: losses(results)[-1] for name, results in runs.items()}
assert last["float16, unscaled"] > 5 * last["float32"]
assert abs(last["float16, scaled"] / last["float32"] - 1) < 0.05
assert abs(last["bfloat16, unscaled"] / last["float32"] - 1) < 0.05

# %% [markdown]
# `bfloat16` has `float32`'s range: nothing underflows, nothing needs scaling.
#
# ## Which scale?
#
# The scale should be as large as possible, but no gradient may exceed 65504. The lens has computed the
# largest safe scale for one batch:

# %%
print(f"the largest safe scale is 2^{np.log2(found.safe_scale):g}")
print(f"at 2^16, {found.at(SCALE).of('gradient').flushed:.1%} become zero")

# %% [markdown]
# But the right scale changes from batch to batch, and while the model learns. So a training step finds it
# by trying: if a gradient is infinite, the step is *skipped* and the scale is halved. After a number of
# good steps the scale is doubled. Here it starts far too high, at 2⁴¹, and grows after 15 good steps (the
# defaults are 2¹⁶ and 2000 steps).

# %%
scaler = amp.GradScaler(2.0**41, max_scale=2.0**41, growth_interval=15)
results = train("O1", scaler, steps=90)
scales = np.log2([float(result.scale) for result in results])
skipped = np.array([not result.applied for result in results])
print(f"skipped: steps {np.flatnonzero(skipped).tolist()} of {len(results)}")
print("reasons:", {result.reason for result in results if not result.applied})

# %%
# Figure: The loss scale over 90 steps, as a power of two: it falls from 2^41 by one doubling a
# step until gradients fit, then climbs by one every 15 steps, and falls back by one where a
# climb was too much. Skipped steps are marked.
figure, axes = plt.subplots(figsize=(5.6, 2.6))
steps = np.arange(len(results))
axes.step(steps, scales, where="mid", color="#0072b2", label="loss scale")
axes.plot(
    steps[skipped], scales[skipped], "x", color="#d55e00", label="skipped step"
)
axes.set_xlabel("step")
axes.set_ylabel("loss scale, as a power of two")
axes.legend()
plt.show()

# %% jupyter={"source_hidden": true}
# At first each step is skipped and the scale halved, down to what the lens found.
assert skipped[0]
assert abs(scales[~skipped][0] - np.log2(found.safe_scale)) <= 1
assert skipped[: np.argmin(skipped)].all()
assert np.array_equal(
    np.diff(scales)[skipped[:-1]], -np.ones(skipped[:-1].sum())
)
assert losses(results)[-1] < 0.5 * losses(results)[0]

# %% [markdown]
# ## A skipped step changes nothing
#
# An infinite gradient must not reach the weights: one step with it would make them infinite for good. In
# ampbridge a skipped step changes no weight, no momentum and no schedule. Here is the proof:

# %%
digits, optimizer = new_digits()
too_high = amp.GradScaler(2.0**41, max_scale=2.0**41)
step = amp.train_step(
    small_loss, digits.model, optimizer, policy="O1", scaler=too_high
)
before = amp.backend(BACKEND).read_weights(digits.model)
result = step(x, y)
after = amp.backend(BACKEND).read_weights(digits.model)
print(f"applied: {result.applied}, reason: {result.reason}")
print(f"the next scale is 2^{np.log2(too_high.get_scale()):g}")

# %% jupyter={"source_hidden": true}
assert not result.applied
assert all(np.array_equal(before[name], after[name]) for name in before)

# %% [markdown]
# ## Summary
#
# - `float16` turns small gradients (under 6·10⁻⁸) into zero. The loss of a single step does not show how
#   much of the gradient is lost.
# - Scaling the loss by a power of two moves all gradients into range and rounds nothing.
# - Skipped steps are part of the method. A few at the beginning and one now and then are fine; one every
#   few steps is not, and ampbridge warns after 25 in a row.
# - `bfloat16` needs none of this.
#
# ## Exercises
#
# 1. Set `SHRINK` to 1. Which of the four trainings change, and why does unscaled `float16` work for this
#    little model? From which `SHRINK` on does it not?
# 2. Replace `"auto"` by `amp.GradScaler(2.0**8, dynamic=False)`. How much of the gradient is lost now?
# 3. Other libraries have other rules: try `amp.GradScaler.like("deepspeed")` and
#    `amp.GradScaler.like("keras")` in "Which scale?" and compare the curves.
