"""Tables: what foreign text they show cannot steer a terminal."""

import io
import re
from dataclasses import replace
from html import unescape

import pytest
import tomlkit

import ampbridge as amp
from ampbridge import cli
from ampbridge.errors.foreign_text import on_one_line, printable
from ampbridge.reports.printing import Table, print_text


@pytest.mark.parametrize(
    "text, shown",
    [
        ("fp16 = True", "fp16 = True"),
        ("größer → 2¹⁶", "größer → 2¹⁶"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("back\rto the start\a\b", "back\\rto the start\\x07\\x08"),
        ("right \u202eto left", "right \\u202eto left"),
        ("not utf-8 \udcff", "not utf-8 \\udcff"),
        ("a\\b'c", "a\\b'c"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown


EVIL = "a\r\nb\nc \x1b[31m\x00\x7f\u2028\u202e\x85\t d"


def test_a_comment_has_one_line_and_no_control_character():
    assert on_one_line(EVIL) == "a\\r b c \\x1b[31m\\x00\\x7f\\u2028\\u202e\\x85\\t d"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_text_of_a_file_is_escaped_on_a_terminal_and_exact_in_a_pipe():
    terminal, pipe = Terminal(), io.StringIO(newline="")
    for file in (terminal, pipe):
        print_text(EVIL, file)
    assert terminal.getvalue() == "a\nb\nc \\x1b[31m\\x00\\x7f\\u2028\\u202e\\x85\t d"
    assert pipe.getvalue() == EVIL


@pytest.mark.parametrize("recipe", [amp.Recipe("O1"), amp.Recipe(amp.Policy("O2", keep=[EVIL]))])
def test_the_toml_of_a_recipe_is_its_own_whatever_the_names_and_the_comments(recipe):
    text = recipe.to_toml({"policy.level": EVIL, "policy.keep": "]\nlevel = 'O0'"})
    assert amp.Recipe.from_toml(text) == recipe
    assert "\\x1b[31m" in text
    assert not {"\x1b", "\x00", "\x7f", "\r"} & set(text)
    assert tomlkit.parse(text).unwrap() == recipe.to_dict()


def test_an_error_on_the_command_line_shows_no_control_character(tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text("")
    nowhere = tmp_path / "nowhere\x1b[2J" / "page\x1b[2J.html"
    assert cli.main(["compare", str(tmp_path / "recipe.toml"), "--html", str(nowhere)]) == 1
    shown = capsys.readouterr().err
    assert "Hint: --html page\\x1b[2J.html" in shown
    assert "\x1b" not in shown


def test_a_table_shows_no_control_character():
    evil = "\x1b]0;evil\x07"
    table = Table(evil, (evil, "b"), ((evil, "1"),), (evil,))
    assert "\x1b" not in str(table)
    assert "\x07" not in str(table)
    assert str(table).count("\\x1b]0;evil\\x07") == 4


@pytest.mark.parametrize("arguments", [[], ["--to", "torch"], ["--to", "ampbridge"]])
def test_port_shows_no_control_character_of_a_file_name(tmp_path, capsys, arguments):
    script = tmp_path / "train\x1b[2J.py"
    script.write_text("print('no mixed precision')\n")
    cli.main(["port", str(script), *arguments])
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown


# -- at the width of a terminal

STYLE = re.compile("\x1b\\[[0-9;]*m")


NAMES = ("blocks.11.attention.self.query.weight", "blocks.11.attention.output.dense.bias")
WIDE = Table(
    "ranges of a model",
    ("values", "name", "runs in", "max |x|", "overflow", "to zero", "subnormal", "headroom"),
    tuple(
        ("parameter", name, "bfloat16", "6.55e+04", "100.0%", "<0.1%", "<0.1%", "+15")
        for name in NAMES
    ),
    (
        "overflow, to zero, subnormal: fractions of the values in float16; headroom: doublings until",
    ),
)


def printed(table, monkeypatch, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    table.print(terminal)
    return terminal.getvalue()


@pytest.mark.parametrize("columns", [80, 100])
def test_a_table_fits_the_terminal_and_cuts_nothing(monkeypatch, columns):
    shown = printed(WIDE, monkeypatch, columns)
    assert max(map(len, shown.splitlines())) <= columns
    words = shown.split()
    for whole in ("bfloat16", "6.55e+04", "100.0%", "subnormal", "headroom"):
        assert whole in words
    for name in NAMES:
        parts = [
            word for word in words if word in name and ("." in word or word in ("bias", "weight"))
        ]
        assert name in "".join(parts)
    assert "…" not in shown


def test_as_text_it_has_80_columns_and_all_words():
    long = replace(WIDE, title="a loss scale of " * 8, remarks=(*WIDE.remarks, "a\n\nb"))
    shown = str(long)
    assert max(map(len, shown.splitlines())) == 80
    assert shown.count("a loss") + shown.count("a\nloss") == 8
    assert "headroom:\ndoublings until" in shown
    assert shown.endswith("\na\n\nb")


def test_a_table_in_a_pipe_has_a_line_a_row():
    pipe = io.StringIO()
    WIDE.print(pipe)
    assert [line.split()[1] for line in pipe.getvalue().splitlines()[3:5]] == list(NAMES)


def test_a_table_that_fits_is_the_same_everywhere(monkeypatch):
    table = Table("a title", ("op", "dtype"), (("softmax", "float32"), ("linear", "bfloat16")))
    monkeypatch.setenv("NO_COLOR", "1")
    assert STYLE.sub("", printed(table, monkeypatch)) == f"{table}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["lists", "show", "torch"],
        ["lists", "diff", "torch", "paddle", "tensorflow", "safe"],
        ["lists", "why", "softmax"],
        ["explain", "O1", "numpy"],
        ["doctor", "--framework", "numpy"],
    ],
)
def test_what_commands_print_fits_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert cli.main(command) == 0
    tables = terminal.getvalue().partition("---")[2].splitlines()
    assert len(tables) > 2
    assert [line for line in tables if len(line) > 80] == []


def test_a_report_is_shown_whole_in_a_notebook():
    table = Table("<b>title</b>", ("op & rule", "dtype"), (("exp", "float32"),))
    assert table._repr_html_() == (
        "<pre>&lt;b&gt;title&lt;/b&gt;\nop &amp; rule  dtype\n---------  -------\nexp        float32</pre>"
    )
    for report in (amp.doctor(), amp.explain("O1", "numpy")):
        assert unescape(report._repr_html_()) == f"<pre>{report}</pre>"
