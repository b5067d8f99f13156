# %% [markdown]
# # 3. The loss scale
#
# A question after one of Harvard's CS249r: a model trains well in `bfloat16`. On older GPUs it has to train
# in `float16`. Now its loss does not fall, and the norm of its gradients is zero. What happened, and what
# would have prevented it?

# %%
import numpy as np

import ampbridge as amp
from ampbridge import course, lens, workloads

FRAMEWORK = "numpy"  # or "torch", "tensorflow", "paddle", "jax"

native = workloads.of_backend(FRAMEWORK)
backend = amp.backend(FRAMEWORK)
digits = workloads.find("digits-mlp")(FRAMEWORK, 0)
x, y = digits.batches[0]

# %% [markdown]
# ## 3.1 A gradient of 1e-8
#
# The smallest number of `float16` is 6e-8, and half of it rounds to zero. A scale multiplies the loss, and
# so all gradients. Which power of two is the smallest scale at which a gradient of 1e-8 is not zero in
# `float16`?

# %%
scale = ...

# %%
scales = 2.0 ** np.arange(20)
kept = (1e-8 * scales).astype(np.float16) > 0
needed = scales[kept.argmax()]

# %%
print(course.check("3.1", scale, needed))

# %% [markdown]
# ## 3.2 A loss that needs it
#
# A segmentation averages its loss over 2²⁴ pixels, and each gradient is divided by that. Ours averages over
# 2⁷ digits, and is divided by 2¹⁷ more. Compared with `float32`, do `"most"` or `"few"` of its gradients
# become zero?

# %%
lost = {"float16": ..., "float16, scaled by 65536": ..., "bfloat16": ...}


# %%
def small_loss(model, x, y):
    return native.loss(model, x, y) * 2.0**-17


def gradients(policy, scale=1.0):
    scaler = amp.GradScaler(scale)
    _, grads = amp.value_and_grad(
        small_loss, digits.model, x, y, policy=policy, scaler=scaler
    )
    return np.concatenate([np.asarray(grad).ravel() for grad in grads])


true = gradients("O0")


def word(grads):
    share = np.mean(grads[true != 0] == 0)
    return "most" if share > 0.5 else "few"


found = {
    "float16": word(gradients("O1")),
    "float16, scaled by 65536": word(gradients("O1", 65536.0)),
    "bfloat16": word(gradients("O1:bfloat16")),
}

# %%
print(course.check("3.2", lost, found))

# %% [markdown]
# ## 3.3 How a scale is found
#
# If a gradient is infinite, the step is skipped, and the scale is halved for the next one. We train on the
# usual loss, from a scale of 2²⁴. How many steps are skipped before the first that is not? The lens knows
# the largest scale that the first batch allows (2¹⁰ is 1024):

# %%
print(lens.ranges(native.loss, digits.model, x, y).safe_scale)

# %%
skips = ...

# %%
trained = workloads.find("digits-mlp")(FRAMEWORK, 0)
scaler = amp.GradScaler(2.0**24)
step = amp.train_step(
    native.loss, trained.model, trained.optimizer, policy="O1", scaler=scaler
)
applied = [step(*batch).applied for batch in trained.first(20)]
skipped = applied.index(True)

# %%
print(course.check("3.3", skips, skipped))

# %% [markdown]
# ## 3.4 What a skipped step does
#
# Suppose that the scale is set to 2²⁴ once more, which is too large. Which of these are the `"same"` after
# the next step, and which have `"changed"`?

# %%
state = {"weights": ..., "momentum": ..., "loss scale": ...}


# %%
def joined(named):
    return np.concatenate([array.ravel() for array in named.values()])


def seen():
    slots = backend.read_optimizer(trained.optimizer, trained.model).slots
    return {
        "weights": joined(backend.read_weights(trained.model)),
        "momentum": joined(slots),
        "loss scale": np.array(scaler.get_scale()),
    }


scaler = amp.GradScaler(2.0**24)
step = amp.train_step(
    native.loss, trained.model, trained.optimizer, policy="O1", scaler=scaler
)
before = seen()
step(x, y)
found = {
    part: "same" if np.array_equal(before[part], after) else "changed"
    for part, after in seen().items()
}

# %%
print(course.check("3.4", state, found))

# %% [markdown]
# ## What to remember
#
# The question of the beginning: the gradients fell below the smallest number of `float16` and became zero.
# A loss scale would have kept them. [Tutorial 2](../tutorials/loss_scaling.py) draws these gradients.
