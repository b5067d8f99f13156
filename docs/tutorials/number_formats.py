# %% [markdown]
# # 1. Number formats
#
# Networks are usually trained in `float32`. Mixed precision also uses two formats of half that size,
# `float16` and `bfloat16`. They move half the bytes through the memory, and the matrix units of a GPU
# multiply them several times as fast. They lose three things, and later tutorials return to each:
# **range**, **precision**, and **small steps**.
#
# You need NumPy for this page, and `ml_dtypes`, which gives NumPy a `bfloat16`.

# %%
import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np

FORMATS = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
COLOURS = {"float32": "#555555", "float16": "#0072b2", "bfloat16": "#d55e00"}

# %% [markdown]
# ## Sign, exponent, fraction
#
# A floating-point number is ±1.*fraction* × 2<sup>*exponent*</sup>. The exponent's bits decide how large
# and how small numbers can be, the fraction's bits how finely they are spaced. Here is 0.1 in each format:


# %%
def bits(value, dtype):
    """Sign, exponent and fraction, as they are stored."""
    info = ml_dtypes.finfo(dtype)
    integer = np.array(value, dtype).view(f"u{info.bits // 8}")
    text = f"{integer:0{info.bits}b}"
    return text[0], text[1 : 1 + info.nexp], text[1 + info.nexp :]


for name, dtype in FORMATS.items():
    print(
        f"{name:9}",
        *bits(0.1, dtype),
        f"  = {float(np.array(0.1, dtype)):.10f}",
    )

# %% [markdown]
# `bfloat16` is the upper half of a `float32`, rounded: the same 8 bits of exponent, and 7 bits of fraction.
# `float16` divides its 16 bits differently: 5 for the exponent, 10 for the fraction.

# %% jupyter={"source_hidden": true}
sign, exponent, fraction = bits(0.1, np.float32)
assert bits(0.1, ml_dtypes.bfloat16)[:2] == (sign, exponent)
assert [len(part) for part in bits(0.1, np.float16)] == [1, 5, 10]
assert [len(part) for part in bits(0.1, ml_dtypes.bfloat16)] == [1, 8, 7]

# %% [markdown]
# ## Range
#
# A number above the largest one becomes infinity. Below the smallest *normal* number the fraction loses
# bit after bit (these are the *subnormal* numbers). A number below half of the smallest subnormal one
# becomes zero.

# %%
print(
    f"{'':9} {'largest':>10} {'smallest normal':>16} {'smallest subnormal':>19}"
)
for name, dtype in FORMATS.items():
    info = ml_dtypes.finfo(dtype)
    print(
        f"{name:9} {float(info.max):10.3g} {float(info.smallest_normal):16.3g} "
        f"{float(info.smallest_subnormal):19.3g}"
    )

# %%
# Figure: One horizontal bar a format on an axis of powers of two. float32 and bfloat16 reach
# from 2^-126 to 2^128, float16 only from 2^-14 to 2^16; lighter parts on the left are subnormal
# numbers.
figure, axes = plt.subplots(figsize=(5.6, 1.9))
for row, (name, dtype) in enumerate(FORMATS.items()):
    info = ml_dtypes.finfo(dtype)
    largest, normal, subnormal = (
        np.log2(float(value))
        for value in (info.max, info.smallest_normal, info.smallest_subnormal)
    )
    axes.barh(
        row, largest - normal, left=normal, height=0.6, color=COLOURS[name]
    )
    axes.barh(
        row,
        normal - subnormal,
        left=subnormal,
        height=0.6,
        color=COLOURS[name],
        alpha=0.35,
    )
axes.set_yticks(range(3), FORMATS)
axes.invert_yaxis()
axes.set_xlabel("magnitude, as a power of two (lighter: subnormal)")
plt.show()

# %% [markdown]
# Activations and weights rarely leave `float16`'s range. Two kinds of numbers do: sums of squares and
# exponentials, which are too large, and gradients, which are too small.

# %%
with np.errstate(over="ignore"):
    print("300 ** 2 in float16:", np.float16(300) ** 2)
    print("exp(12)  in float16:", np.exp(np.float16(12)))
    print("1e-8     in float16:", np.float16(1e-8))
    print("1e-8    in bfloat16:", FORMATS["bfloat16"](1e-8))

# %% jupyter={"source_hidden": true}
with np.errstate(over="ignore"):
    assert np.isinf(np.float16(300) ** 2)
    assert np.isinf(np.exp(np.float16(12)))
assert np.float16(1e-8) == 0
assert FORMATS["bfloat16"](1e-8) > 0

# %% [markdown]
# ## Precision
#
# Between two neighbouring powers of two the numbers are evenly spaced. Rounding to the nearest number
# therefore has an error of at most half a spacing. That is a relative error of 2⁻²⁴ in `float32`, 2⁻¹¹ in
# `float16` and 2⁻⁸ in `bfloat16`, anywhere in the normal range.

# %%
# Figure: Relative rounding error against magnitude, both logarithmic. float16's points lie
# under 2^-11 from 2^-14 to 2^16, rise to 100 % below, and stop above. bfloat16's lie under 2^-8
# over the whole axis.
x = 2.0 ** np.random.default_rng(0).uniform(-30, 20, 4000)
figure, axes = plt.subplots(figsize=(5.6, 3))
for name in ("float16", "bfloat16"):
    with np.errstate(over="ignore"):
        rounded = x.astype(FORMATS[name]).astype(np.float64)
    error = np.abs(rounded - x) / x
    axes.loglog(x, error, ".", markersize=2, color=COLOURS[name], label=name)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_ylim(2.0**-20, 2)
axes.set_xlabel("value")
axes.set_ylabel("relative rounding error")
axes.legend(markerscale=5)
plt.show()

# %% jupyter={"source_hidden": true}
for name in ("float16", "bfloat16"):
    info = ml_dtypes.finfo(FORMATS[name])
    normal = x[(x >= float(info.smallest_normal)) & (x <= float(info.max))]
    error = np.abs(normal.astype(FORMATS[name]).astype(np.float64) - normal)
    assert (error / normal).max() <= 2.0 ** -(info.nmant + 1)

# %% [markdown]
# So `bfloat16` has `float32`'s range and hardly three decimal digits; `float16` has more than three
# digits and a narrow range. That is why `float16` needs its losses scaled
# ([tutorial 2](loss_scaling.md)) and `bfloat16` does not.
#
# ## Small steps
#
# If you add a much smaller number to a number, the sum does not change. From 1 to 2 the spacing is 2⁻⁷ in
# `bfloat16`: adding less than half of that changes nothing, no matter how often you repeat it.

# %%
total = {name: dtype(1.0) for name, dtype in FORMATS.items()}
for _ in range(1000):
    for name, dtype in FORMATS.items():
        total[name] = dtype(total[name] + dtype(0.001))
for name, value in total.items():
    print(f"1 + 1000 x 0.001 in {name:9}: {float(value):.4f}")

# %% jupyter={"source_hidden": true}
assert total["bfloat16"] == 1.0
assert abs(float(total["float16"]) - 2.0) > 0.02
assert abs(float(total["float32"]) - 2.0) < 1e-3

# %% [markdown]
# This happens to a weight and its small updates, and is why O2 keeps *master weights* in `float32`
# ([tutorial 4](master_weights.md)). It also happens in a long sum. Matrix units therefore multiply 16-bit
# numbers, but add the products in `float32` and round once, at the end. ampbridge's NumPy backend does the
# same.

# %%
products = (np.random.default_rng(1).uniform(0, 1, 4096) ** 2).astype(
    np.float16
)
running = np.float16(0)
for product in products:
    running = np.float16(running + product)
once = np.float16(products.astype(np.float32).sum())
exact = products.astype(np.float64).sum()
print(f"exact {exact:.2f}, rounded once {once:.2f}")
print(f"rounded after every addition {running:.2f}")

# %% jupyter={"source_hidden": true}
assert abs(once - exact) / exact <= 2.0**-11
assert abs(running - exact) > 10 * abs(once - exact)

# %% [markdown]
# ## Summary
#
# | | float32 | float16 | bfloat16 |
# |---|---|---|---|
# | bytes | 4 | 2 | 2 |
# | largest | 3.4e38 | 65504 | 3.4e38 |
# | smallest normal | 1.2e-38 | 6.1e-5 | 1.2e-38 |
# | relative rounding error | 6e-8 | 5e-4 | 4e-3 |
# | its weakness in training | memory | small gradients, large sums | small updates |
#
# ## Exercises
#
# 1. What is the smallest whole number that `float16` cannot hold? And `bfloat16`? Guess from the number
#    of fraction bits, then look for it with a loop.
# 2. The variance in a normalization layer is a mean of squares. At which standard deviation of its
#    input does a square overflow `float16`?
# 3. Sum the 4096 products in `bfloat16`, rounding after every addition. Where does the sum stop growing,
#    and why there?
