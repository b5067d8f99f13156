# %% [markdown]
# # 1. Formats and rounding
#
# Training adds small numbers to large ones: updates to weights, products to sums. This lesson adds 0.01 a
# thousand times. (Stanford's CS336 asks for such sums in `float32` and `float16`.)
#
# In each lesson, write your predictions in place of `...`, and only then run the cells below. `check` says
# which mistake leads to a wrong prediction. It tells the answer once you have it, or if you add
# `reveal=True`.

# %%
import ml_dtypes
import numpy as np

from ampbridge import course

FORMATS = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def added(dtype, times):
    """The sum of so many 0.01, rounded after each addition."""
    total = dtype(0)
    for _ in range(times):
        total = dtype(total + dtype(0.01))
    return float(total)


# %% [markdown]
# ## 1.1 A thousand times 0.01
#
# The fraction has 52 bits in `float64`, 23 in `float32`, 10 in `float16` and 7 in `bfloat16`. Between 1 and
# 2 the numbers of `bfloat16` are therefore 2⁻⁷ apart, between 2 and 4 twice as far, and so on. Predict the
# four sums, each to the nearest whole number.

# %%
sums = {"float64": ..., "float32": ..., "float16": ..., "bfloat16": ...}

# %%
found = {name: added(dtype, 1000) for name, dtype in FORMATS.items()}

# %%
print(course.check("1.1", sums, found))

# %% [markdown]
# ## 1.2 On and on
#
# Suppose that you go on adding 0.01. At which number does the sum in `float16` stand still?

# %%
end = ...

# %%
last = added(np.float16, 5000)

# %%
print(course.check("1.2", end, last))

# %% [markdown]
# ## 1.3 Whose error?
#
# Matrix units multiply 16-bit numbers and add the products in `float32`. A thousand `float16` numbers 0.01
# that are added in `float32` make 10.002. Does the error come from the `"numbers"`, which were rounded to
# `float16` once, or from the `"additions"`?

# %%
culprit = ...

# %%
numbers = np.full(1000, 0.01, np.float16)
exact = float(numbers.astype(np.float64).sum())
total = np.float32(0)
for number in numbers:
    total += np.float32(number)
of_numbers, of_additions = abs(exact - 10), abs(float(total) - exact)
source = "numbers" if of_numbers > of_additions else "additions"

# %%
print(course.check("1.3", culprit, source))

# %% [markdown]
# ## 1.4 Three hundred, squared
#
# The exponent has 5 bits in `float16`, and 8 in `bfloat16`, as in `float32`. What is 300² in each?
# (Infinity is `"inf"`. A few hundred more or less count as right.)

# %%
squares = {"float16": ..., "bfloat16": ...}

# %%
with np.errstate(over="ignore"):
    found = {
        name: float(FORMATS[name](300) * FORMATS[name](300)) for name in squares
    }

# %%
print(course.check("1.4", squares, found))

# %% [markdown]
# ## What to remember
#
# A 16-bit format has two limits, its range and its spacing. `float16` lacks range, `bfloat16` lacks digits.
# [Tutorial 1](../tutorials/number_formats.py) draws both. Where is 0.01 lost in a weight of your own model?
# [Lesson 4](masters.py) comes back to that.
