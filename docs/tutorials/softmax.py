# %% [markdown]
# # 6. Four frameworks disagree on softmax
#
# Mixed precision is defined by lists: some ops run in 16 bits, some in `float32`, and all others in the
# dtype of their inputs. Every framework has its own lists. This page compares four of them, finds an op on
# which they differ, and shows how that changes a loss.

# %%
import os
import warnings
from textwrap import fill, indent

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import ampbridge as amp
from ampbridge import lens, workloads
from ampbridge.policies import op_table
from ampbridge.reports import lists

BACKEND = os.environ.get("AMPBRIDGE_TUTORIAL_BACKEND", "numpy")
native = workloads.of_backend(BACKEND)
SETS = ("torch", "paddle", "tensorflow", "safe")

# %% [markdown]
# ## The lists
#
# ampbridge contains the lists of the three frameworks as data, taken from each framework's source, and a
# fourth of its own, `"safe"`. You can use any of them with any framework:

# %%
for name in SETS:
    print(f"{name}:")
    print(indent(fill(op_table.source(name), 66), "    "))

# %%
# Figure: A table of colours: fourteen ops by four list sets. linear is low everywhere.
# layer_norm is float32 everywhere. softmax and log_softmax are float32 for torch, paddle and
# safe, and follow their inputs for tensorflow. The others differ as well.
OPS = (
    "linear", "add", "gelu", "exp", "log", "mean", "sum", "pow", "softmax",
    "log_softmax", "layer_norm", "cross_entropy", "mse_loss", "cumsum",
)  # fmt: skip
RULES = ("allow", "promote", "deny")
policies = {name: amp.Policy("O1", lists=name) for name in SETS}
grid = [
    [RULES.index(policies[name].category(op)) for name in SETS] for op in OPS
]

figure, axes = plt.subplots(figsize=(5.6, 4.8))
axes.imshow(
    grid, cmap=ListedColormap(["#56b4e9", "#f0f0f0", "#e69f00"]), aspect="auto"
)
WORDS = {"allow": "float16", "promote": "as it arrives", "deny": "float32"}
for row, categories in enumerate(grid):
    for column, category in enumerate(categories):
        axes.text(
            column,
            row,
            WORDS[RULES[category]],
            ha="center",
            va="center",
            fontsize=8,
        )
axes.set_xticks(range(len(SETS)), SETS)
axes.set_yticks(range(len(OPS)), OPS)
axes.xaxis.tick_top()
axes.set_xlabel("list set, at O1 in float16")
plt.show()

# %% [markdown]
# `lists.Difference` finds all ops on which some lists differ; on the command line that is
# `ampbridge lists diff torch paddle tensorflow safe`.

# %%
differing = lists.Difference(
    tuple(lists.Lists.parse(name) for name in SETS)
).ops()
print(
    f"{len(differing)} of {len(op_table.ops())} ops differ, softmax among them:"
)
for name in SETS:
    print(f"    {name:10} O1: {lists.Lists(name).rule('softmax'):8} O2: "
          f"{lists.Lists(name, 'O2').rule('softmax')}")  # fmt: skip

# %% jupyter={"source_hidden": true}
assert "softmax" in differing
assert "linear" not in differing
assert (
    policies["torch"].category("softmax")
    == policies["paddle"].category("softmax")
    == "deny"
)
assert policies["tensorflow"].category("softmax") == "promote"

# %% [markdown]
# `deny` means `float32` for any input. `promote` means the precision of the inputs, which after a linear
# layer is `float16`. The rule in parentheses is the one for unlisted ops: Paddle denies softmax at O1, but
# does not list it at O2.
#
# `amp.explain` shows the result on one framework, and whether the framework or ampbridge inserts the casts:

# %%
for name in SETS:
    (found,) = [
        each
        for each in amp.explain(policies[name], BACKEND).ops
        if each.op == "softmax"
    ]
    print(f"lists={name!r:13} softmax runs in {found.dtype:8} (by: {found.by})")

# %% [markdown]
# ## What can go wrong
#
# Softmax returns probabilities. `float16` has no numbers between 0 and 6·10⁻⁸, and `bfloat16` has only 8
# bits for numbers near 1. Take ten classes, and scores that a confident model would return:

# %%
scores = np.array([0, -2, -4, -6, -8, -10, -12, -14, -16, -18], np.float32)
exact = np.exp(scores) / np.exp(scores).sum()
with np.errstate(divide="ignore"):
    print("class   probability   -log: exact   after float16")
    for number, p in enumerate(exact):
        low = -np.log(np.float16(p))
        print(f"{number:5} {p:13.2e} {-np.log(p):13.3f} {low:15.3f}")

# %% jupyter={"source_hidden": true}
assert np.float16(exact[-1]) == 0
assert np.float16(exact[-3]) > 0

# %% [markdown]
# Suppose that the last class is the right one, because the model is wrong or the label is. A loss computed
# from a `float16` probability is then infinite. With softmax in `float32` the loss is 18, with a useful
# gradient.
#
# ## What it changes in a model
#
# We write a loss by hand: first softmax, then a logarithm. These are its few ops in each framework:

# %%
if BACKEND == "numpy":
    import autograd.numpy as anp

    from ampbridge_numpy import nn

    def probability_of(logits, y):
        return nn.softmax(logits)[np.arange(len(y)), y]

    def mean_log(p):
        return anp.mean(anp.log(p))

elif BACKEND == "torch":
    import torch

    def probability_of(logits, y):
        return torch.softmax(logits, dim=-1).gather(1, y[:, None])

    def mean_log(p):
        return torch.mean(torch.log(p))

elif BACKEND == "tensorflow":
    import tensorflow as tf

    def probability_of(logits, y):
        return tf.gather(tf.nn.softmax(logits), y, batch_dims=1)

    def mean_log(p):
        return tf.reduce_mean(tf.math.log(p))

elif BACKEND == "paddle":
    import paddle

    def probability_of(logits, y):
        return paddle.take_along_axis(
            paddle.nn.functional.softmax(logits), y.unsqueeze(1), 1
        )

    def mean_log(p):
        return paddle.mean(paddle.log(p))

elif BACKEND == "jax":
    import jax
    import jax.numpy as jnp

    def probability_of(logits, y):
        return jnp.take_along_axis(jax.nn.softmax(logits), y[:, None], axis=1)

    def mean_log(p):
        return jnp.mean(jnp.log(p))


def loss_by_hand(model, x, y):
    return -mean_log(probability_of(model(x), y))


# %% [markdown]
# We train the digits' model in `float32`. Then we give it a batch whose labels are all wrong, as in a bad
# shard of a data set. What is the loss under each framework's lists? (By default, a model returns `float32`
# under ampbridge, which would hide the difference. `output_dtype="float16"` returns the logits as a plain
# `float16` layer would.)

# %%
digits = workloads.find("digits-mlp")(BACKEND, 0)
step = amp.train_step(native.loss, digits.model, digits.optimizer, policy="O0")
results = [step(x, y) for x, y in digits.batches]
print(f"trained: loss {results[-1].loss:.3f}")

x, y = digits.batches[0]
wrong = (y + 1) % 10


def loss_under(policy):
    with warnings.catch_warnings():
        # NumPy's, of the logarithm of zero.
        warnings.simplefilter("ignore", RuntimeWarning)
        loss, _ = amp.value_and_grad(
            loss_by_hand, digits.model, x, wrong, policy=policy
        )
    return float(loss)


truth = loss_under("O0")
losses = {
    (name, dtype): loss_under(
        amp.Policy("O1", dtype, lists=name, output_dtype=dtype)
    )
    for name in SETS
    for dtype in ("float16", "bfloat16")
}
print(f"\nloss of wrong labels: {truth:.3f} in float32\n")
print(f"{'lists':12}{'float16':>10}{'bfloat16':>10}")
for name in SETS:
    in_float16, in_bfloat16 = losses[name, "float16"], losses[name, "bfloat16"]
    print(f"{name:12}{in_float16:10.3f}{in_bfloat16:10.3f}")

# %% jupyter={"source_hidden": true}
for name in ("torch", "paddle", "safe"):
    assert abs(losses[name, "float16"] - truth) < 0.01
    assert (
        abs(losses[name, "bfloat16"] - truth) < 2 * 2.0**-3
    )  # its spacing at 17
assert np.isinf(losses["tensorflow", "float16"])

# %% [markdown]
# Same model, same framework, same batch; only the list differs. Under TensorFlow's lists the loss is
# infinite in `float16`. The scaler would skip this step, halve the scale, and find that no scale helps:
# the overflow is in the loss, not in its gradients. Where does it come from? `lens.locate` looks for the
# op that makes the infinity or lost the values before it, tries cures, and names one that works:

# %%
base = amp.Policy("O1", lists="tensorflow", output_dtype="float16")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    finding = lens.locate(loss_by_hand, digits.model, x, wrong, policy=base)
print(finding)

# %% jupyter={"source_hidden": true}
assert (finding.op, finding.others[0].op) == ("softmax", "log")
assert finding.cured_policy.category("softmax") == "deny"

# %% [markdown]
# Infinity appears at the logarithm, but the numbers were lost at softmax. Denying softmax cures it; the
# lens has tried that. You can also ask which ops have to stay in `float32`, so that loss and gradients are
# within 1 % of those of `float32`:

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    kept = lens.bisect(
        loss_by_hand, digits.model, [(x, wrong)], policy=base, scale=1024.0
    )
print(kept)

# %% jupyter={"source_hidden": true}
assert kept.policy.deny == ("softmax",)

# %% [markdown]
# This is not a bug in TensorFlow. Its guide tells users to give the last layer `dtype="float32"`, and its
# fused losses take logits. That is a *convention*, and a ported model does not bring the conventions of its
# framework along. There are four ways to be safe, one line each:

# %%
cures = {
    'deny=["softmax"]': base.replace(deny=["softmax"]),
    'lists="torch"': base.replace(lists="torch"),
    'lists="safe"': base.replace(lists="safe"),
    'output_dtype="float32"': base.replace(output_dtype="float32"),
}
for text, policy in cures.items():
    print(f"{text:24} loss {loss_under(policy):.3f}")

# %% jupyter={"source_hidden": true}
for policy in cures.values():
    assert abs(loss_under(policy) - truth) < 0.01

# %% [markdown]
# The best cure is none of these lines: call the framework's own cross-entropy with logits. It never forms
# the small probability, and all four lists run it in `float32`.

# %% jupyter={"source_hidden": true}
assert all(policies[name].category("cross_entropy") == "deny" for name in SETS)

# %% [markdown]
# ## Summary
#
# - There is no single right answer to which ops are safe in 16 bits. Frameworks differ on more than half of
#   all ops.
# - A model that trained under one framework's lists may overflow under another's. `lists=` selects the
#   lists: `amp.Policy("O1", lists="paddle")` means the same on each framework.
# - [All ops, with their names and their place in each list](../ops.md).
#
# ## Exercises
#
# 1. Find an op, other than softmax, on which the list sets differ, and that your own model uses.
#    `ampbridge lists why OP` shows why it is listed.
# 2. `loss_under(amp.Policy("O2", ...))` raises an error. What does it ask for, and why only at O2?
# 3. How large must the score of the wrong class be until `bfloat16` overflows in this loss?
