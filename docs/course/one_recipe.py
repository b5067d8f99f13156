# %% [markdown]
# # 5. One recipe on five frameworks
#
# Frameworks differ in how they scale a loss and in their lists of ops. Both are settings of a recipe, and a
# recipe means the same on each framework. This lesson predicts what they do, and moves a recipe from Paddle
# to Keras. Neither has to be installed.

# %%
import numpy as np

import ampbridge as amp
from ampbridge import course, workloads

FRAMEWORK = "numpy"  # or "torch", "tensorflow", "paddle", "jax"

# %% [markdown]
# ## 5.1 Three rules, one history
#
# From a scale of 2¹⁶, three steps: the first overflows, the second does not, the third overflows.
#
# - PyTorch halves the scale at each overflow.
# - DeepSpeed forgives one overflow, and halves at the next.
# - Paddle Fleet multiplies by 0.8 after two overflows in a row.
#
# Which power of two is the scale after these steps? Predict the exponents.

# %%
exponents = {"torch": ..., "deepspeed": ..., "paddle_fleet": ...}


# %%
def exponent(rule):
    digits = workloads.find("digits-mlp")(FRAMEWORK, 0)
    x, y = digits.batches[0]
    scaler = amp.GradScaler.like(rule, init_scale=2.0**16)
    step = amp.train_step(
        digits.loss_fn, digits.model, digits.optimizer, scaler=scaler
    )
    for factor in (2**14, 1, 2**14):  # a batch so large overflows
        step(x * np.float32(factor), y)
    return np.log2(scaler.get_scale())


found = {rule: exponent(rule) for rule in exponents}

# %%
print(course.check("5.1", exponents, found))

# %% [markdown]
# ## 5.2 Three lists, one op
#
# Softmax follows a linear layer in `float16`. In which dtype does it run, by the lists of each framework
# for O1? One of the three counts it among the ops that follow their inputs, for the sake of
# speed.

# %%
dtypes = {"torch": ..., "paddle": ..., "tensorflow": ...}

# %%
rules = {
    name: amp.Policy("O1", lists=name).category("softmax") for name in dtypes
}
found = {
    name: "float32" if rule == "deny" else "float16"
    for name, rule in rules.items()
}

# %%
print(course.check("5.2", dtypes, found))

# %% [markdown]
# ## 5.3 A Paddle script
#
# Its author wants matrix products and sums in `float32`. In which dtype do the matrix products run in
# Paddle? (Paddle's lists name ops as its old static graph did. There `paddle.matmul` was `matmul_v2`.)

# %%
SCRIPT = """
import paddle

scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
for i, (x, y) in enumerate(loader):
    with paddle.amp.auto_cast(custom_black_list={"reduce_sum", "matmul"}):
        loss = loss_fn(model(x), y)
    scaler.scale(loss / 4).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
"""
dtype = ...

# %%
reading = amp.port.read(SCRIPT)
denied = reading.recipe.policy.category("matmul") == "deny"
matmul = "float32" if denied else "float16"

# %%
print(course.check("5.3", dtype, matmul))

# %% [markdown]
# ## 5.4 To Keras
#
# Keras chooses a dtype for each layer, and scales the loss in its optimizer. In a port to native Keras,
# what is `"kept"`, and what has `"changed"`?

# %%
settings = {
    "policy.lists": ...,
    "policy.deny": ...,
    "scaler.init_scale": ...,
    "step.accumulate": ...,
}

# %%
report = amp.port.fidelity(reading.recipe, "tensorflow")
differing = {row.key for row in report.rows}
found = {key: "changed" if key in differing else "kept" for key in settings}

# %%
print(course.check("5.4", settings, found))

# %% [markdown]
# ## What to remember
#
# A level and a dtype do not make a recipe: lists and rules do. With another `FRAMEWORK` all answers are the
# same. If you have two, `ampbridge compare digits --backends numpy,torch` trains both, and draws their
# scales. `print(amp.port.write(reading.recipe, "tensorflow"))` shows the port;
# [tutorial 5](../tutorials/paddle_to_tensorflow.py) explains it.
