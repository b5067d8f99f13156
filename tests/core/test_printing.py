"""Tables: what foreign text they show cannot steer a terminal."""

import pytest

from ampbridge import cli
from ampbridge.printing import Table, printable


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


def test_a_table_shows_no_control_character():
    evil = "\x1b]0;evil\x07"
    table = Table(evil, (evil, "b"), ((evil, "1"),), (evil,))
    assert "\x1b" not in str(table)
    assert "\x07" not in str(table)
    assert str(table).count("\\x1b]0;evil\\x07") == 4


def test_port_shows_no_control_character_of_a_file_name(tmp_path, capsys):
    script = tmp_path / "train\x1b[2J.py"
    script.write_text("print('no mixed precision')\n")
    cli.main(["port", str(script), "--to", "torch"])
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown
