"""The lessons of the course find what they should, and wrong predictions are told apart.

``ANSWERS`` come from elsewhere: the formats as IEEE 754 and ml_dtypes define them, worked by hand;
PyTorch's documentation of autocast's CUDA lists; the rules of other libraries' scalers in their sources.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path

import pytest
from processes import check_installed, run_python

import ampbridge as amp
from ampbridge import course

ROOT = Path(__file__).parents[2]
LESSONS = {path.stem: path.read_text() for path in (ROOT / "docs/course").glob("*.py")}
CHECKED = re.compile(r'course\.check\(\s*"(\d\.\d)", (\w+),')

ANSWERS = {
    "1.1": {"float64": 10, "float32": 10.0001, "float16": 9.9531, "bfloat16": 4},
    "1.2": 32,
    "1.3": "numbers",
    "1.4": {"float16": inf, "bfloat16": 90112},
    "2.1": {
        "parameters": "float32",
        "output of a linear layer": "float16",
        "output of layer norm": "float32",
        "logits": "float16",
        "loss": "float32",
        "gradients of the parameters": "float32",
    },
    "2.2": {"relu": "float16", "residual sum": "float32"},
    "2.3": 256,
    "2.4": "float32",
    "3.1": 4,
    "3.2": {"float16": "most", "float16, scaled by 65536": "few", "bfloat16": "few"},
    "3.3": 4,
    "3.4": {"weights": "same", "momentum": "same", "loss scale": "changed"},
    "4.1": 2**-8,
    "4.2": {"float32": "most", "kahan": "most", "stochastic": "most", "None": "few"},
    "4.3": {"float32": 6, "kahan": 4, "stochastic": 2, "None": 2},
    "4.4": 12.8,
    "5.1": {"torch": 14, "deepspeed": 15, "paddle_fleet": 16},
    "5.2": {"torch": "float32", "paddle": "float32", "tensorflow": "float16"},
    "5.3": "float16",
    "5.4": {
        "policy.lists": "changed",
        "policy.deny": "changed",
        "scaler.init_scale": "kept",
        "step.accumulate": "kept",
    },
    "6.1": 0,
    "6.2": "cast",
    "6.3": {
        "a loss scale of 1": "infinite",
        "bfloat16": "finite",
        "deny linear": "finite",
        "a normalised column": "finite",
    },
    "6.4": 2**23 / (24 * 60 * 60),
}

# On the others both were run by hand; JAX compiles for a minute.
ELSEWHERE = [
    (name, framework)
    for name in ("dtypes_of_ops", "loss_scale")
    for framework in ("torch", "paddle")
]


@pytest.mark.parametrize(
    "name, framework",
    [
        *((name, "numpy") for name in LESSONS),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ELSEWHERE),
    ],
)
def test_a_lesson_finds_what_it_should(name, framework, tmp_path):
    check_installed(framework)
    script = LESSONS[name].replace('FRAMEWORK = "numpy"', f"FRAMEWORK = {framework!r}")
    answered = CHECKED.sub(
        lambda asked: asked[0].replace(f" {asked[2]},", f" {ANSWERS[asked[1]]!r},"), script
    )
    file = tmp_path / "lesson.py"
    file.write_text(f"from math import inf\n{answered}")
    said = run_python(Path(__file__).with_name("run_script.py"), framework, file)
    assert len(re.findall(r"^Right: ", said, re.M)) == len(CHECKED.findall(script)) == 4, said


def test_each_question_is_asked_once_in_its_lesson():
    asked = []
    for script in sorted(LESSONS.values()):
        number = re.match(r"# %% \[markdown\]\n# # (\d)\. ", script)[1]
        numbers = [question for question, _ in CHECKED.findall(script)]
        assert numbers == re.findall(r"^# ## (\d\.\d) ", script, re.M)
        assert {question[0] for question in numbers} == {number}
        asked += numbers
    assert asked == list(course.questions()) == list(ANSWERS)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_takes_ten_minutes(name):
    assert len(LESSONS[name].split()) <= 600


@pytest.mark.parametrize(
    "question, wrong",
    [(name, wrong) for name, about in course.questions().items() for wrong in about["wrong"]],
)
def test_a_wrong_answer_is_told_its_mistake_and_not_the_answer(question, wrong):
    about, answer = course.questions()[question], ANSWERS[question]
    part, _, value = wrong.rpartition(": ")
    if isinstance(answer, dict):
        places = [part] if part else list(answer)
        predictions = [{**answer, place: value} for place in places]
    else:
        predictions = [value]
    for prediction in predictions:
        said = unfolded(course.check(question, prediction, answer))
        assert about["wrong"][wrong] in said
        assert "Right" not in said
        assert about["why"] not in said


@pytest.mark.parametrize("question", ANSWERS)
def test_no_prediction_a_right_one_and_a_revealed_one(question):
    answer, about = ANSWERS[question], course.questions()[question]
    none = unfolded(course.check(question, ..., answer))
    assert none.startswith("No prediction yet: ")
    right = unfolded(course.check(question, answer, answer))
    assert right.startswith("Right: ")
    revealed = unfolded(course.check(question, None, answer, reveal=True))
    assert f"Right: {revealed}" == right
    assert revealed.endswith(f". {about['why']}")


def test_other_wrong_answers_get_a_hint_and_open_ones_a_reminder():
    prediction = {"float64": 3, "float32": 10, "float16": ..., "bfloat16": 4.2}
    assert unfolded(course.check("1.1", prediction, ANSWERS["1.1"])) == (
        "2 of 4 right. float64: too small: compare 0.01 with half the spacing of the numbers around the "
        "sum so far. float16: write a number in place of `...`."
    )


@pytest.mark.parametrize(
    "question, word, meant",
    [
        *(("2.4", word, "float32") for word in ("fp32", "FLOAT32", "torch.float32")),
        *(("6.3", word, "infinite") for word in (float("nan"), "inf", "not finite")),
        ("3.2", "All", "most"),
        ("3.4", "unchanged", "same"),
        ("3.4", "halved", "changed"),
    ],
)
def test_another_word_for_the_answer(question, word, meant):
    assert course.check(question, word, meant).startswith("Right: ")


@pytest.mark.parametrize(
    "question, word", [("3.4", "unchange"), ("6.2", "relu"), ("2.4", "bfloat32"), ("1.2", nan)]
)
def test_no_answer_is_guessed_from_its_spelling(question, word):
    with pytest.raises((amp.ArgumentError, amp.ArgumentTypeError), match="Hint: "):
        course.check(question, word, ANSWERS[question])


def test_a_number_next_to_a_known_mistake_is_not_that_mistake():
    assert "too large" in course.check("2.3", 257, 256)


@pytest.mark.parametrize(
    "arguments, kind, words",
    [
        (
            ("7.1", 3, 3),
            amp.ArgumentError,
            r"No question '7\.1'; there are 1\.1, .*\nHint: course\.check\(",
        ),
        (
            ("1.2", True, 32),
            amp.ArgumentTypeError,
            r"prediction True is no number\.\nHint: one like -7\.5; infinity is 'inf'",
        ),
        (("1.2", "many", 32), amp.ArgumentTypeError, r"prediction 'many' is no number"),
        (
            ("2.4", "int8", "float32"),
            amp.ArgumentError,
            r"'int8' is none of .*\nHint: 'float16', 'bfloat16' or 'float32'$",
        ),
        (
            ("3.4", "same", ANSWERS["3.4"]),
            amp.ArgumentError,
            r"Hint: prediction = \{'weights': \.\.\., ",
        ),
        (
            ("1.2", {"a": 3}, 32),
            amp.ArgumentError,
            r"Passed \{'a': 3\} .*\nHint: prediction = \.\.\.$",
        ),
    ],
)
def test_what_is_no_prediction_is_refused(arguments, kind, words):
    with pytest.raises(kind, match=words):
        course.check(*arguments)


def unfolded(text):
    return " ".join(text.split())


@pytest.mark.slow
def test_the_key_is_what_the_lessons_find():
    run_python(ROOT / "scripts/write_course.py", "--check")


class Slides(HTMLParser):
    def __init__(self):
        super().__init__()
        self.shown, self.fetched = [], []

    def handle_starttag(self, tag, attributes):
        if tag == "section":
            self.shown.append("")
        self.fetched += [name for name, _ in attributes if name in ("src", "href")]

    def handle_data(self, data):
        if self.shown:
            self.shown[-1] += data


@pytest.mark.slow
def test_there_is_a_slide_for_each_prediction_and_each_answer(tmp_path):
    run_python(ROOT / "scripts/write_course.py", "--slides", tmp_path / "slides.html")
    slides = Slides()
    slides.feed((tmp_path / "slides.html").read_text())
    assert slides.fetched == []
    assert len(slides.shown) == 2 * len(ANSWERS) + 2 * len(LESSONS)
    for question, about in course.questions().items():
        asked, answered = (slide for slide in slides.shown if slide.startswith(question))
        assert re.search(r"[=:] \.\.\.", asked)
        assert about["why"].replace("`", "") in unfolded(answered)
