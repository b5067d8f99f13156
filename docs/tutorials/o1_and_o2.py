# %% [markdown]
# # 3. O1 against O2
#
# `O1` and `O2` are the two usual ways to mix precisions. The names come from NVIDIA's apex, and Paddle
# still uses them; other frameworks use other names, or none. This page shows what each of them does to one
# small transformer, op by op, with `ampbridge_lens`.
#
# | | O1 | O2 |
# |---|---|---|
# | parameters | `float32` | 16 bits, except in norms, with `float32` masters in the optimizer |
# | matrix products, convolutions | 16 bits | 16 bits |
# | ops on the deny list | `float32` | `float32` |
# | all other ops | the dtype of the inputs, often `float32` | the dtype of the inputs, mostly 16 bits |
# | what prepares the model | nothing | `amp.decorate`, which `train_step` calls for you |
# | also called | `autocast` (PyTorch), `16-mixed` | nearly `mixed_float16` (Keras), `fp16` (DeepSpeed) |

# %%
import os
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

import ampbridge as amp
from ampbridge import lens, workloads

BACKEND = os.environ.get("AMPBRIDGE_TUTORIAL_BACKEND", "numpy")
native = workloads.of_backend(BACKEND)


def new_transformer():
    """One block over 16 tokens: each 2 x 2 patch of a digit is a word."""
    return workloads.find("digits-transformer")(BACKEND, 0)


digits = new_transformer()
x, y = digits.batches[0]

# %% [markdown]
# ## O1, op by op
#
# `lens.census` runs the loss and lists every op that ran: its layer, how often it ran, its dtype, and the
# rule that chose the dtype. It runs it five times, to see how long each op takes.

# %%
o1 = lens.census(native.loss, digits.model, x, y, policy="O1")
print(o1)

# %% jupyter={"source_hidden": true}
rules = {(row.op, row.rule) for row in o1.rows}
assert ("linear", "O1 allow") in rules
assert ("cross_entropy", "O1 deny") in rules
assert ("add", "promote") in rules

# %% [markdown]
# Look at the column "rule". The matrix products have `O1 allow`: they cost the most, and a GPU is fastest
# at them in 16 bits. The norms and the loss have `O1 deny`: they sum over many values or exponentiate. All
# other ops have `promote`: their *inputs* determine the dtype. The sums of the residual connections are
# `float32`, because one of their two inputs is.
#
# ## O2, op by op

# %%
o2 = lens.census(native.loss, digits.model, x, y, policy="O2")
print(o2)


# %% [markdown]
# The ops on the deny list did not become `float16`. The inputs of the other ops did change: the parameters
# are `float16` now, and so is the embedding's output, hence the sums are, and so on down to the loss.


# %%
def calls_by_dtype(census):
    counted: Counter[str] = Counter()
    for row in census.rows:
        counted[row.dtype] += row.calls
    return counted


for name, census in (("O1", o1), ("O2", o2)):
    print(f"{name}: {dict(calls_by_dtype(census))}")

# %% jupyter={"source_hidden": true}
assert calls_by_dtype(o2)["float16"] > calls_by_dtype(o1)["float16"]
assert "float32" in o1.dtypes("add")
assert "float32" not in o2.dtypes("add")
assert o1.dtypes("linear") == o2.dtypes("linear")

# %% [markdown]
# ## What it costs in accuracy
#
# How far is the gradient from that of `float32`? The loss is scaled by 1024 where the format needs it
# ([tutorial 2](loss_scaling.md)).

# %%
POLICIES = ("O1", "O2", "O1:bfloat16", "O2:bfloat16")
SCALE = 1024.0


def gradient(policy):
    """All in one row; without the embedding's, which may be sparse rows."""
    digits = new_transformer()
    if policy.startswith("O2"):
        amp.decorate(digits.model, digits.optimizer, policy)
    scaler = amp.GradScaler(SCALE)
    _, grads = amp.value_and_grad(
        native.loss, digits.model, x, y, policy=policy, scaler=scaler
    )
    names = amp.backend(BACKEND).parameter_names(digits.model)
    dense = [
        g
        for name, g in zip(names, grads, strict=True)
        if "embedding" not in name
    ]
    return (
        np.concatenate([np.asarray(g, np.float64).ravel() for g in dense])
        / SCALE
    )


true = gradient("O0")
errors = {
    policy: np.linalg.norm(gradient(policy) - true) / np.linalg.norm(true)
    for policy in POLICIES
}
for policy, error in errors.items():
    print(f"{policy:12} gradient off by {error:.3%}")

# %% jupyter={"source_hidden": true}
assert max(errors["O1"], errors["O2"]) < 2.0**-10
assert min(errors["O1:bfloat16"], errors["O2:bfloat16"]) > 2.0**-9
assert max(errors["O1:bfloat16"], errors["O2:bfloat16"]) < 2.0**-7

# %%
# Figure: Four bars of relative gradient error on a logarithmic axis. Those of float16 lie at
# 2^-11, those of bfloat16 at 2^-8; O1 and O2 hardly differ.
figure, axes = plt.subplots(figsize=(5.6, 2.3))
colours = [
    "#0072b2" if "bfloat16" not in policy else "#d55e00" for policy in POLICIES
]
axes.barh(POLICIES, list(errors.values()), color=colours, height=0.6)
axes.axvline(
    2.0**-11,
    color="#0072b2",
    linestyle=":",
    label="rounding error of float16, 2⁻¹¹",
)
axes.axvline(
    2.0**-8,
    color="#d55e00",
    linestyle=":",
    label="rounding error of bfloat16, 2⁻⁸",
)
axes.set_xscale("log", base=2)
axes.set_xlim(2.0**-12, 2.0**-6)
axes.invert_yaxis()
axes.set_xlabel("relative error of the gradient, against float32")
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# The *format* determines the error: `bfloat16` is eight times as coarse, and so is the gradient. The *level*
# makes hardly any difference to a single gradient. It would make one over many small updates, and master
# weights prevent that ([tutorial 4](master_weights.md)).

# %%
runs = {}
for policy in ("O0", *POLICIES):
    digits = new_transformer()
    step = amp.train_step(
        native.loss, digits.model, digits.optimizer, policy=policy
    )
    runs[policy] = [float(step(*batch).loss) for batch in digits.first(60)]
for policy, losses in runs.items():
    first, *_, last = losses
    print(f"{policy:12} loss {first:.3f} at first, {last:.3f} after 60 steps")

# %% jupyter={"source_hidden": true}
for losses in runs.values():
    assert losses[-1] < losses[0] / 10

# %% [markdown]
# ## Layers that stay float32
#
# Often a single layer is sensitive to low precision, most often the last. `keep` holds the whole layer in
# `float32`. You select it by its name, by a pattern (`"decoder.*"`), or by its class (`"LayerNorm"`):

# %%
digits = new_transformer()
head_kept = amp.Policy("O2", keep=["head"])
kept = lens.census(native.loss, digits.model, x, y, policy=head_kept)
for row in kept.rows:
    if row.rule == "kept layer":
        print(row.op, "of layer", repr(row.layer), "runs in", row.dtype)

# %% jupyter={"source_hidden": true}
head = [row for row in kept.rows if row.layer == "head"]
assert head
assert {row.dtype for row in head} == {"float32"}
assert {row.rule for row in head} == {"kept layer"}

# %% [markdown]
# ## Which one?
#
# - Start with **O1**. It changes no parameter and no checkpoint, and you can switch it off for the next step.
# - **O2** saves memory for activations and gradients, and needs no casts of weights in every step. But it
#   needs masters, and ops that are on no list also run in 16 bits.
# - Prefer **bfloat16** to `float16` if the hardware supports it: it needs no loss scaling and skips no
#   steps. `amp.Policy.auto()` checks the hardware.
# - Then measure your own model, on your own machine. `lens.worth_it` compares the times of the policies. It
#   also measures `float32` a second time, which shows how much of a difference is noise:


# %%
def make():
    digits = new_transformer()
    return digits.model, digits.optimizer


race = lens.worth_it(native.loss, make, x, y, steps=2, rounds=4)
print(race)

# %% jupyter={"source_hidden": true}
assert [row.name for row in race.rows[:2]] == ["float32", "float32, again"]

# %% [markdown]
# On a CPU without 16-bit units nothing becomes faster, and rounding costs time. This page was built on a
# CPU, and its times do not apply to a GPU.
#
# ## Exercises
#
# 1. Deny `"add"` at O2: `amp.Policy("O2", deny=["add"])`. Which other ops also become `float32`, and why?
# 2. Take the census with `lists="tensorflow"` and `lists="paddle"`. Find three ops that run in another
#    dtype.
# 3. Keep `"LayerNorm"` (in Keras `"LayerNormalization"`) at O2. What changes in the census, and what does
#    not?
