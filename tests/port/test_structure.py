"""How the calls of a step stand to each other: small loops with what was read off them by hand."""

import pytest

import ampbridge as amp

HEAD = """\
import torch
scaler = torch.amp.GradScaler("cuda")
n = 4
"""
REGION = '    with torch.autocast("cuda"):\n        loss = f(model(x))\n'
STEP = "scaler.step(opt)\n{0}scaler.update()\n{0}opt.zero_grad()\n"


def loop(body, head="for i, x in enumerate(loader):\n"):
    return HEAD + head + REGION + body


def step(indent):
    return indent + STEP.format(indent)


ACCUMULATED = {
    "by turns": loop(
        "    scaler.scale(loss / n).backward()\n    if (i + 1) % n == 0:\n" + step("        ")
    ),
    "or the last": loop(
        "    scaler.scale(loss / n).backward()\n    if (i + 1) % n == 0 or i + 1 == len(loader):\n"
        + step("        ")
    ),
    "by going on": loop(
        "    scaler.scale(loss / n).backward()\n    if (i + 1) % n:\n        continue\n"
        + step("    ")
    ),
    "by a name": loop(
        "    last = (i + 1) % n == 0\n    scaler.scale(loss / n).backward()\n    if last:\n"
        + step("        ")
    ),
    "in a function": "def take():\n"
    + step("    ")
    + loop("    scaler.scale(loss / n).backward()\n    if (i + 1) % n == 0:\n        take()\n"),
    "by an argument": "def take(loss, now):\n    scaler.scale(loss / n).backward()\n    if now:\n"
    + step("        ")
    + loop("    take(loss, (i + 1) % n == 0)\n"),
    "by a counter": HEAD
    + "count = 0\nfor x in loader:\n"
    + REGION
    + "    scaler.scale(loss / n).backward()\n    count += 1\n    if count == n:\n        count = 0\n"
    + step("        "),
    "by a loop within": HEAD
    + "for batch in loader:\n    for x in range(n):\n"
    + REGION.replace("    with", "        with").replace("        loss", "            loss")
    + "        scaler.scale(loss / n).backward()\n"
    + step("    "),
    "after the loop": loop("    scaler.scale(loss / n).backward()\n", "for i in range(n):\n")
    + step(""),
    "after a break": HEAD
    + "for i, x in enumerate(loader):\n    if i == n:\n        break\n"
    + REGION
    + "    scaler.scale(loss / n).backward()\n"
    + step(""),
}


@pytest.mark.parametrize("case", ACCUMULATED)
def test_accumulation(case):
    reading = amp.port.read(ACCUMULATED[case])
    assert reading.recipe.accumulate == 4
    assert not any("summed" in found.message for found in reading.findings)


@pytest.mark.parametrize("case", ACCUMULATED)
def test_a_sum_is_told(case):
    reading = amp.port.read(ACCUMULATED[case].replace("loss / n", "loss"))
    assert reading.recipe.accumulate == 4
    assert any("summed" in found.message for found in reading.findings)


PLAIN = "    scaler.scale(loss).backward()\n"
TOLD = {
    "a second step": (PLAIN + step("    ") + "    opt.step()\n", "a second time"),
    "no second step in the other branch": (
        PLAIN + "    if scaled:\n" + step("        ") + "    else:\n        opt.step()\n",
        None,
    ),
    "a floor": (
        PLAIN + step("    ") + "    if scaler._scale < 128:\n        scaler._scale = floor\n",
        "set by hand",
    ),
    "a floor by update": (
        PLAIN + step("    ") + "    if scaler.get_scale() < 1:\n        scaler.update(1.0)\n",
        "set",
    ),
    "gradients that stay": (
        PLAIN + "    scaler.step(opt)\n    scaler.update()\n",
        "clears the gradients",
    ),
    "clipping of scaled gradients": (
        PLAIN + "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n" + step("    "),
        "still scaled",
    ),
    "a clip of its own": (
        PLAIN + "    scaler.unscale_(opt)\n    clip_it(model.parameters())\n" + step("    "),
        "stands between",
    ),
    "a second loss": (
        PLAIN + "    scaler.scale(other).backward()\n" + step("    "),
        "second backward pass",
    ),
    "nothing": (PLAIN + step("    "), None),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told(case):
    body, words = TOLD[case]
    messages = [
        found.message
        for found in amp.port.read(loop(body)).findings
        if found.kind != "note" or words
    ]
    assert not messages if words is None else any(words in each for each in messages)


ISLANDS = {
    "within the region": (
        "",
        '        with torch.autocast("cuda", enabled=False):\n            loss = g(loss)\n',
    ),
    "in forward": (
        "class Net(torch.nn.Module):\n    def forward(self, x):\n"
        '        with torch.autocast("cuda", enabled=False):\n'
        "            return self.head(x)\nmodel = Net()\n",
        "",
    ),
}


@pytest.mark.parametrize("case", ISLANDS)
def test_an_island_is_told_and_leaves_the_recipe(case):
    before, within = ISLANDS[case]
    source = HEAD + before + "for x in loader:\n" + REGION + within + PLAIN + step("    ")
    reading = amp.port.read(source)
    assert reading.recipe.policy.level == "O1"
    assert any("float32" in found.message for found in reading.findings)


def test_no_finding_depends_on_the_size_of_the_file():
    filler = "\n".join(f"def f{n}(a, b):\n    c = a + b\n    return c * {n}\n" for n in range(800))
    source = (
        HEAD + filler + "\nfor x in loader:\n" + REGION + PLAIN + step("    ") + "    opt.step()\n"
    )
    assert any("a second time" in found.message for found in amp.port.read(source).findings)


def test_a_keyword_that_is_not_known_is_told():
    source = loop(PLAIN + step("    ")).replace('("cuda")\nn', '("cuda", hysteresis=2)\nn')
    assert any("hysteresis" in found.message for found in amp.port.read(source).findings)


def test_a_scaler_that_is_not_known_is_told_beside_a_recipe_of_float32():
    body = "    scaler.scale(loss).backward()\n" + step("    ")
    source = loop(body, "for x in loader:\n").replace('torch.amp.GradScaler("cuda")', "made(None)")
    source = source.replace('autocast("cuda")', 'autocast("cuda", enabled=args.amp)')
    options = "import argparse\nparser = argparse.ArgumentParser()\n"
    options += 'parser.add_argument("--amp", action="store_true")\nargs = parser.parse_args()\n'
    reading = amp.port.read(options + source)
    assert "O0" in [each.settings["policy.level"] for each in reading.alternatives]
    assert any("not known here; a recipe of O0" in found.message for found in reading.findings)
