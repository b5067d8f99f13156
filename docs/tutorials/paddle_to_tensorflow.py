# %% [markdown]
# # 5. A Paddle recipe to TensorFlow
#
# A model was trained in PaddlePaddle, at O1, with custom op lists and a custom scaler. Now you want to train
# it in TensorFlow. The layers are quickly written. The *recipe* is the difficult part: which op ran in
# which precision, how losses were scaled, when the optimizer stepped. `amp.port` extracts the recipe from
# the script without running it, and writes it for another framework.
#
# It needs `pip install 'ampbridge[port]'`. Neither Paddle nor TensorFlow has to be installed.

# %%
import os
from textwrap import fill, indent

import matplotlib.pyplot as plt
import numpy as np

import ampbridge as amp
from ampbridge import workloads
from ampbridge.reports import lists

BACKEND = os.environ.get("AMPBRIDGE_TUTORIAL_BACKEND", "numpy")
native = workloads.of_backend(BACKEND)

# %% [markdown]
# ## The script
#
# The script has a loop as in Paddle's guide to mixed precision. It uses custom lists, accumulates the
# gradients of four batches, and starts the loss scale at 1024.

# %%
SCRIPT = """
import paddle
from paddle import nn

model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
optimizer = paddle.optimizer.Momentum(0.1, 0.9, parameters=model.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=1024, incr_every_n_steps=500)

for i, (x, y) in enumerate(loader):
    with paddle.amp.auto_cast(
        custom_white_list={"elementwise_add"},
        custom_black_list={"reduce_sum", "matmul"},
        level="O1",
    ):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss / 4).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
"""

# %% [markdown]
# ## Read
#
# `amp.port.read` takes a file or source text. It looks up the values of names, arguments and settings, and
# never runs what it reads.

# %%
reading = amp.port.read(SCRIPT)
recipe = reading.recipe
print(f"framework: {reading.framework}\n")
print(recipe.to_toml())

# %% [markdown]
# These are all mixed-precision settings of a training step, in a dozen lines that depend on no framework.
# Compare them with the script. `accumulate = 4` comes from the loop (`loss / 4`, `(i + 1) % 4`).
# `lists = "paddle"` means that all other ops follow Paddle's lists, and `like = "paddle"` means that the
# scaler's other settings are Paddle's.

# %% jupyter={"source_hidden": true}
assert reading.framework == "paddle"
assert recipe == amp.Recipe(
    amp.Policy("O1", "float16", lists="paddle", allow=["add"], deny=["sum"]),
    amp.Scaling.like("paddle", init_scale=1024.0, growth_interval=500),
    accumulate=4,
)

# %% [markdown]
# One thing is missing. The script denies `matmul`, the recipe does not:

# %%
for finding in reading.findings:
    for line in str(finding).splitlines():
        print(fill(line, 80, subsequent_indent="    "))

# %% jupyter={"source_hidden": true}
assert [finding.kind for finding in reading.findings] == ["ignored"]
assert recipe.policy.category("matmul") == "allow"

# %% [markdown]
# Paddle's lists take the op names of its old static graph, where `paddle.matmul` is `matmul_v2`. Paddle
# silently ignores an entry that it does not recognise. The author of the script believes that matrix
# products run in `float32`; they never did. A port that copied the entry would train differently from the
# original. The recipe therefore describes what Paddle really did, and the finding tells you about it.
#
# ## What would change in TensorFlow?
#
# `amp.port.fidelity` compares a recipe with a target framework: which settings change there, and which are
# lost. It lists nothing that is kept. `used` are the ops that the script names.

# %%
report = amp.port.fidelity(recipe, "tensorflow", used=reading.ops)
for row in report.rows:
    print(f"{row.kind:8} {row.key}")
    print(indent(fill(row.message, 70), " " * 9))

# %% jupyter={"source_hidden": true}
assert report.can_be_expressed
assert {row.key for row in report.of("changes")} == {
    "policy.lists",
    "policy.deny",
}

# %% [markdown]
# Keras casts layer by layer, Paddle op by op. So a native port is close, but not equal. With ampbridge's
# calls (`native=False`) the recipe is kept exactly, because ampbridge supplies Paddle's lists:

# %%
exact = amp.port.fidelity(recipe, "tensorflow", native=False)
print(exact)

# %% jupyter={"source_hidden": true}
assert exact.rows == ()

# %% [markdown]
# ## Write
#
# `amp.port.write` turns the recipe into a module to import from your own code, native or with ampbridge.
# Here is the module with ampbridge:

# %%
module = amp.port.write(recipe, "tensorflow", native=False)
print(module)

# %% jupyter={"source_hidden": true}
compile(module, "amp_tf.py", "exec")
assert "def train_step(" in module
assert "import paddle" not in module

# %% [markdown]
# The native module is longer, because Keras drops a micro-batch that overflows, and Paddle a whole step. It
# needs only Keras and TensorFlow. It sets the dtype policy, and has `optimizer(inner)`, for `compile` and
# `fit` and for a loop of your own. With `demo=True`, a small model stands in for yours, and the module runs.

# %%
standalone = amp.port.write(recipe, "tensorflow")
print(f"{len(standalone.splitlines())} lines, ampbridge in none of them")

# %% jupyter={"source_hidden": true}
compile(standalone, "amp_tf.py", "exec")
assert "ampbridge" not in standalone

# %% [markdown]
# The same on the command line:
#
#     ampbridge port train.py                        # print the recipe
#     ampbridge port train.py --to tensorflow        # native code, with the report
#
# ## Train with the recipe
#
# You can also pass a recipe to `train_step`, on any framework. This page uses the one that
# `AMPBRIDGE_TUTORIAL_BACKEND` names, or NumPy.

# %%
digits = workloads.find("digits-mlp")(BACKEND, 0)
step = amp.train_step(
    native.loss, digits.model, digits.optimizer, recipe=recipe
)
results = [step(x, y) for x, y in digits.first(160)]
applied = [result.applied for result in results]
print(
    f"{len(results)} micro-batches, the optimizer stepped {sum(applied)} times"
)
print(f"reasons: {sorted({str(result.reason) for result in results})}")
print(f"loss scale: {float(results[0].scale):g} at first")

# %% jupyter={"source_hidden": true}
assert sum(applied) == len(results) / 4
assert float(results[0].scale) == 1024

# %%
# Figure: Loss over 40 optimizer steps, falling from 2.3.
losses = (
    np.array([float(result.loss) for result in results])
    .reshape(-1, 4)
    .mean(axis=1)
)
figure, axes = plt.subplots(figsize=(5.6, 2.4))
axes.plot(losses, color="#0072b2")
axes.set_xlabel("optimizer step, of four micro-batches each")
axes.set_ylabel("loss (cross-entropy, nats)")
plt.show()

# %% jupyter={"source_hidden": true}
assert losses[-1] < 0.5 * losses[0]

# %% [markdown]
# ## Why the lists matter
#
# A port without the lists would have used TensorFlow's own. How many ops differ between the two?

# %%
pair = tuple(lists.Lists.parse(name) for name in ("paddle", "tensorflow"))
differing = lists.Difference(pair).ops()
print(f"the lists differ on {len(differing)} ops, for example on")
for op in ("softmax", "logsumexp", "bmm", "conv3d"):
    theirs, ours = (each.rule(op) for each in pair)
    print(f"    {op:14} Paddle: {theirs:10} TensorFlow: {ours}")

# %% jupyter={"source_hidden": true}
assert {"softmax", "logsumexp", "bmm", "conv3d"} <= set(differing)

# %% [markdown]
# Softmax is the most famous of them, and [the next page](softmax.md) is about it.
#
# ## Summary
#
# - Precision, lists, scaling and accumulation make a recipe. A recipe is a value: print it, save it
#   (`recipe.save("recipe.toml")`), compare it, pass it to `train_step`.
# - A framework does not always do what the script seems to say.
# - Read the fidelity report before you trust a port, including one by ampbridge.
#
# ## Exercises
#
# 1. In `SCRIPT`, write `level="O2"` and add a line `paddle.amp.decorate(...)`. What appears in the recipe?
# 2. Replace `matmul` by `matmul_v2` in the deny list. How do the finding and the recipe change?
# 3. Port to `"torch"`. Why does the module use ampbridge, although native code is asked for?
