"""The grid of ``compare --explore``, and its page in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import workloads
from ampbridge.cli import main
from ampbridge_compare import compare
from ampbridge_compare import explore as module
from ampbridge_compare.explore import Explored, Grid, Setting, explore
from ampbridge_compare.explore_page import page, sentence
from ampbridge_compare.gradients import lost_share
from ampbridge_compare.runs import Run

DATA = Path(__file__).parents[2] / "docs" / "explore.json"
RECIPE = workloads.recipe("digits")


BASE = amp.Recipe(amp.Policy("O1", lists="safe"), amp.Scaling(backoff_factor=0.25), clip_norm=1.0)


@pytest.fixture
def small(monkeypatch):
    """A grid of six runs: float32, float16 at two growth intervals, each at two learning rates."""
    monkeypatch.setattr(module, "POLICIES", ("O0", "O1:float16"))
    monkeypatch.setattr(module, "INIT_SCALES", (2.0**24,))
    monkeypatch.setattr(module, "GROWTH_INTERVALS", (2, 2000))
    monkeypatch.setattr(module, "RATES", (1.0, 4.0))


FASTER = """
from dataclasses import replace
from ampbridge import workloads
def build(backend, seed):
    digits = workloads.find("digits-mlp")(backend, seed)
    return replace(digits, optimizer=workloads.Digits.optimizer(digits.model, 0.4))
"""


def single_runs(setting, backends, folder):
    """What ``compare`` makes of the same recipe at the same learning rate."""
    level, _, dtype = setting.policy.partition(":")
    policy, scaler = amp.Policy(level, dtype, lists="safe") if dtype else amp.Policy("O0"), None
    if setting.init_scale:
        growth = {"init_scale": setting.init_scale, "growth_interval": setting.growth_interval}
        scaler = amp.Scaling(backoff_factor=0.25, **growth)
    (folder / "faster.py").write_text(FASTER)
    workload = {1.0: "digits-mlp", 4.0: str(folder / "faster.py")}[setting.rate]
    recipe = amp.Recipe(policy, scaler, clip_norm=1.0)
    assert amp.Recipe.from_dict(setting.recipe(BASE.to_dict())) == recipe
    return compare(recipe, backends, workload=workload, steps=8).runs


def assert_equal(run, single):
    assert run.error is single.error is None
    assert run.loss == pytest.approx(single.steps.loss, rel=5.1e-4)  # four digits
    assert run.accuracy == pytest.approx(single.accuracy, rel=5.1e-4)
    assert tuple(run.skipped) == single.steps.skipped
    first = dict(run.scale)
    scales = [first[max(s for s in first if s <= step)] for step in range(1, 9)]
    assert tuple(scales) == single.steps.scale
    assert len(first) == 1 + np.count_nonzero(np.diff(scales))


def test_a_run_of_the_grid_is_a_single_run(small, tmp_path):
    grid = explore(BASE, ["numpy"], steps=8)
    settings = [
        Setting(policy, scale, interval, rate)
        for policy, scale, interval in (
            ("O0", None, None),
            ("O1:float16", 2.0**24, 2),
            ("O1:float16", 2.0**24, 2000),
        )
        for rate in (1.0, 4.0)
    ]
    assert [run.setting for run in grid.runs] == settings
    for run in grid.runs[3:5]:
        assert_equal(run, *single_runs(run.setting, ["numpy"], tmp_path))
    assert Grid.from_dict(json.loads(json.dumps(grid.to_dict()))).to_dict() == grid.to_dict()


@pytest.mark.slow
def test_so_it_is_on_every_framework(small, monkeypatch, backends, tmp_path):
    monkeypatch.setattr(module, "POLICIES", ("O2:float16",))
    runs = explore(BASE, backends, steps=8).runs
    setting = Setting("O2:float16", 2.0**24, 2, 4.0)
    found = [run for run in runs if run.setting == setting]
    for run, single in zip(found, single_runs(setting, backends, tmp_path), strict=True):
        assert run.backend == single.backend
        assert_equal(run, single)


@pytest.mark.slow
def test_the_grid_of_the_documents_is_what_numpy_computes():
    """At the smallest learning rate: the others amplify what one CPU's kernels add in another order."""
    kept = [
        run for run in Grid.from_dict(json.loads(DATA.read_text())).runs if run.backend == "numpy"
    ]
    now = explore(RECIPE, ["numpy"]).runs
    assert [run.setting for run in kept] == [run.setting for run in now]
    for old, new in zip(kept, now, strict=True):
        if new.setting.rate == min(module.RATES):
            assert list(old.skipped) == list(new.skipped)
            assert old.loss == pytest.approx(new.loss, rel=0.02)


def test_lost_gradients_are_those_that_float16_rounds_to_zero():
    """Scaled by 2^-8: 2^-17 becomes 2^-25, which rounds to zero; 2^-16 becomes float16's smallest."""
    full = np.array([0.0, 1.0, 2.0**-16, 2.0**-17], np.float32)
    low = (full * np.float32(2.0**-8)).astype(np.float16).astype(np.float32)
    run = Run("x", "x", "ampbridge", gradients={"w": low}, float32_gradients={"w": full})
    assert lost_share(run) == 1 / 3
    assert lost_share(Run("x", "x", "ampbridge")) is None


SCALED = Setting("O1:float16", 2.0**16, 5, 1.0)
SENTENCES = {
    "fell": (
        Explored("x", SCALED, None, [2.3, 0.5], [(1, 2.0**16), (2, 2.0**15)], [1], 0.5, 0.031, 2.0**15),
        "1 of 2 steps was skipped while the scale fell from 2^16 to 2^15. The loss went from 2.3 to 0.5, and "
        "the accuracy is 50.0%. 3.1% of the first batch's gradients became zero at a loss scale of 2^15.",
    ),
    "went up and down": (
        Explored("x", SCALED, None, [2.3, None], [(1, 2.0**16), (2, 2.0**17), (3, 2.0**15)], [2, 3]),
        "2 of 2 steps were skipped while the scale went up and down between 2^15 and 2^17, from 2^16 to "
        "2^15. The loss went from 2.3 to a value that is not finite. This framework does not show how many "
        "gradients were lost.",
    ),
    "no scale": (
        Explored("x", Setting("O0", None, None, 1.0), None, [2.3, 0.5], [(1, 1.0)], [], None, 0.0),
        "There is no loss scale, and none of 2 steps was skipped. The loss went from 2.3 to 0.5. None of the "
        "first batch's gradients became zero.",
    ),
    "no run": (
        Explored("x", SCALED, "PolicyError: no.\nHint: yes"),
        "There is no such run. PolicyError: no.\nHint: yes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_sentence_says_what_a_reader_sees(kind):
    run, said = SENTENCES[kind]
    assert sentence(run, 2) == said


def test_what_is_missing_or_refused_is_told_of(small, monkeypatch, tmp_path, capsys):
    """A framework that is not installed, and a policy that the recipe's other settings exclude."""
    installed = {"numpy": "loaded", "torch": "available"}
    status = dict.fromkeys(("tensorflow", "paddle", "jax"), "not installed") | installed
    monkeypatch.setattr("ampbridge.adapters.registry.backends", lambda: status)
    monkeypatch.setattr(module, "POLICIES", ("O1:bfloat16", "O2:bfloat16"))
    monkeypatch.setattr("ampbridge_compare.command.BACKENDS", ("numpy", "jax"))
    recipe, made = tmp_path / "recipe.toml", tmp_path / "made.html"
    amp.Recipe(amp.Policy("O2", "bfloat16", masters="stochastic")).save(recipe)
    command = ["compare", str(recipe), "--explore", "--steps", "1", "--html", str(made), "--force"]
    assert main(command) == 0
    text = made.read_text()
    assert "<li>jax is not installed, and left out.</li>" in text
    assert (
        "There is no such run. RecipeError: policy: masters='stochastic' at O1, where parameters"
        in text
    )
    assert main([*command, "--backends", "numpy,jax"]) == 1
    assert "<li>jax is left out: jax is not installed. Hint: pip install" in made.read_text()
    capsys.readouterr()
    assert main([*command, "--backends", "jax"]) == 1
    assert capsys.readouterr().err.startswith(
        "AmpBridgeError: jax is left out: jax is not installed. Hint:"
    )


@pytest.mark.parametrize("option", [["--native"], ["--png", "x.png"]])
def test_what_has_no_effect_is_refused(option, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "run_groups", lambda *_: pytest.fail("something ran"))
    assert main(["compare", "digits", "--explore", *option]) == 1
    name = option[0]
    assert f"{name} has no effect.\nHint: leave {name} out" in capsys.readouterr().err


def test_a_schedule_of_policies_is_refused(tmp_path):
    recipe = amp.Recipe(schedule=amp.Schedule([(0, "O0"), (2, "O1")]))
    with pytest.raises(
        amp.ArgumentError, match=r"has a schedule(.|\n)*Hint: a recipe with \[policy\]"
    ):
        explore(recipe, ["numpy"])


def test_what_comes_from_outside_is_text():
    hostile = "</script><script>alert(1)</script>"
    grid = Grid(hostile, 1, 0, {hostile: "1"}, [hostile], [Explored(hostile, SCALED, hostile)])
    assert hostile not in page(grid)
    assert page(grid).count("<script") == 2


# -- the page


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory):
    file = tmp_path_factory.mktemp("explore") / "explore.html"
    file.write_text(page(Grid.from_dict(json.loads(DATA.read_text()))), encoding="utf-8")
    assert file.stat().st_size < 1_000_000

    def shown(width=1280, theme="light"):
        browser.open(file.as_uri(), width, theme)
        return browser

    return shown


SAID = "document.getElementById('says').textContent"
CURVE = "document.querySelector('#loss .run').getAttribute('d')"
FOCUS = 'document.querySelector(\'[name="{}"]:checked, [type=range][name="{}"]\').focus()'


def seen(browser):
    return browser.ask(SAID), browser.ask(CURVE)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_answers_to_the_keyboard(shown, width, theme):
    browser = shown(width, theme)
    assert browser.ask(SAID).startswith(
        "8 of 60 steps were skipped while the scale fell from 2²⁴ to 2¹⁷."
    )
    for control, key in (
        ("initial scale", "ArrowLeft"),
        ("growth interval", "ArrowLeft"),
        ("learning rate", "ArrowRight"),
        ("policy", "ArrowRight"),
        ("framework", "ArrowRight"),
    ):
        before = seen(browser)
        browser.ask(FOCUS.format(control, control))
        browser.press(key)
        for said, now in zip(before, seen(browser), strict=True):
            assert now != said, control
        assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []
    assert len(browser.requests) == 1
    assert (
        browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ) == (theme == "light")


@pytest.mark.slow
def test_a_curve_is_the_data_of_its_run(shown):
    """Each step's point, read off the axis again."""
    browser = shown()
    runs = Grid.from_dict(json.loads(DATA.read_text())).runs
    (run,) = (
        run
        for run in runs
        if (run.backend, *run.setting) == ("numpy", "O1:float16", 2.0**24, 2000, 1.0)
    )
    marks = browser.ask(
        "[...document.querySelectorAll('#loss [text-anchor=end]')]"
        ".map(text => [+text.textContent, text.getAttribute('y') - 4])"
    )
    (low, y_low), *_, (high, y_high) = marks
    points = [point.split(",") for point in browser.ask(CURVE)[1:].split("L")]
    losses = [low + (float(y) - y_low) * (high - low) / (y_high - y_low) for _, y in points]
    assert losses == pytest.approx(run.loss, rel=1e-3)
    assert browser.ask("document.querySelectorAll('.skip-mark').length") == len(run.skipped) == 8


@pytest.mark.slow
def test_a_control_says_where_it_has_no_effect(shown):
    browser = shown()
    browser.ask("document.querySelector('[name=policy][value=\"2\"]').click()")
    states = browser.ask(
        "[...document.querySelectorAll('[type=range]')].map(r => [r.disabled, r.ariaValueText])"
    )
    assert states == [[True, "no effect here"], [True, "no effect here"], [False, "× 1"]]
    assert browser.ask(SAID).startswith("There is no loss scale, and none of 60 steps was skipped.")


@pytest.mark.slow
def test_without_javascript_there_is_a_table(shown, browser):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        shown(390)
        assert browser.ask("document.getElementById('explorer').checkVisibility()") is False
        rows = browser.ask(
            "[...document.querySelectorAll('#all tbody tr')].filter(r => r.checkVisibility()).length"
        )
        assert rows == len(json.loads(DATA.read_text())["runs"])
        assert browser.ask("document.documentElement.scrollWidth") <= 390
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
