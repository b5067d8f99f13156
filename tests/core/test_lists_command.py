"""``ampbridge lists``, against the data files themselves and against what the frameworks publish."""

import io
import json
import subprocess
import sys
from importlib.resources import files

import pytest

from ampbridge.cli import main
from ampbridge.policies import op_table
from ampbridge.reports import lists
from ampbridge.reports.printing import Table

DATA = json.loads((files("ampbridge.policies") / "data" / "lists.json").read_text())
OPS = {
    op["name"]: op
    for op in json.loads((files("ampbridge.policies") / "data" / "ops.json").read_text())["ops"]
}


def printed(capsys, *arguments):
    assert main(["lists", *arguments]) == 0
    return capsys.readouterr().out


def as_data(capsys, *arguments):
    return json.loads(printed(capsys, *arguments, "--json"))


def rows(text):
    """Cells of a plain table; a row ends where the table does."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"-", " "})
    body = [line.split("  ") for line in lines[rule + 1 :]]
    return [[cell.strip() for cell in cells if cell.strip()] for cells in body]


def stored(list_set, level, dtype):
    (entry,) = (
        each
        for each in DATA[list_set]["lists"]
        if level in each["levels"] and dtype in each["dtypes"]
    )
    return entry


# -- show


@pytest.mark.parametrize(
    "spec, key",
    [
        ("paddle:O1:float16", ("paddle", "O1", "float16")),
        ("paddle", ("paddle", "O1", "float16")),
        ("paddle:O2", ("paddle", "O2", "float16")),
        ("tensorflow:bfloat16", ("tensorflow", "O1", "bfloat16")),
        ("torch:cuda", ("torch", "O1", "float16")),
        ("safe:bfloat16:O1", ("safe", "O1", "bfloat16")),
    ],
)
def test_show_is_what_stands_in_the_data(capsys, spec, key):
    shown, entry = as_data(capsys, "show", spec), stored(*key)
    assert shown["lists"] == ":".join(key)
    for rule in ("allow", "deny", "promote"):
        assert shown[rule] == sorted(entry[rule])
    assert shown["unlisted"] == entry["unlisted"]


def test_at_o2_nothing_is_held_in_float32_for_not_being_listed(capsys):
    assert as_data(capsys, "show", "tensorflow:O2")["unlisted"] == "follow"


def test_the_table_has_a_row_for_each_listed_op_with_the_framework_s_names(capsys):
    text = printed(capsys, "show", "paddle:O1:float16")
    entry = stored("paddle", "O1", "float16")
    assert text.startswith(f"paddle:O1:float16: {DATA['paddle']['source']}\n")
    *body, last = rows(text)
    assert len(body) == len(entry["allow"]) + len(entry["deny"])
    assert ["conv1d", "allow", "conv2d, paddle.nn.functional.conv1d"] in body
    assert [
        "cross_entropy",
        "deny",
        "softmax_with_cross_entropy, paddle.nn.functional.cross_entropy",
    ] in body
    assert last == ["Every other op runs in the widest dtype of its inputs."]


def test_names_that_paddle_s_lists_take_no_notice_of_are_not_shown(capsys):
    (matmul,) = (r for r in rows(printed(capsys, "show", "paddle")) if r[0] == "matmul")
    assert matmul == ["matmul", "allow", "matmul_v2, paddle.matmul"]


def test_our_own_lists_are_shown_with_reasons(capsys):
    body = rows(printed(capsys, "show", "safe"))
    assert ["exp", "deny", OPS["exp"]["why"]] in body


# -- diff


def test_diff(capsys):
    data = as_data(capsys, "diff", "torch:cuda", "paddle:O1", "tensorflow", "safe")
    names = ["torch:O1:float16", "paddle:O1:float16", "tensorflow:O1:float16", "safe:O1:float16"]
    assert data["lists"] == names
    # by hand, from the frameworks' published lists
    assert data["ops"]["softmax"] == dict(
        zip(names, ["deny", "deny", "promote", "deny"], strict=True)
    )
    assert data["ops"]["bmm"] == dict(
        zip(names, ["allow", "(promote)", "allow", "allow"], strict=True)
    )
    assert data["ops"]["mean"] == dict(
        zip(names, ["(follow)", "deny", "deny", "deny"], strict=True)
    )
    assert "matmul" not in data["ops"]  # allowed by all
    assert "cross_entropy" not in data["ops"]  # denied by all


def test_diff_has_an_op_exactly_where_it_runs_in_another_dtype(capsys):
    """Against the data: what is not listed counts by what becomes of it."""
    by_unlisted = {"follow": "inputs'", "promote": "inputs'", "full": "float32"}
    by_rule = {"allow": "low", "deny": "float32", "promote": "inputs'"}

    def dtype(entry, op):
        listed = [rule for rule in by_rule if op in entry[rule]]
        return by_rule[listed[0]] if listed else by_unlisted[entry["unlisted"]]

    entries = [stored("paddle", "O1", "bfloat16"), stored("tensorflow", "O1", "bfloat16")]
    differ = [op for op in OPS if len({dtype(entry, op) for entry in entries}) > 1]
    assert list(as_data(capsys, "diff", "paddle:bfloat16", "tensorflow:bfloat16")["ops"]) == differ
    assert len(differ) > 100


def test_the_difference_as_a_table(capsys):
    text = printed(capsys, "diff", "paddle:O1", "paddle:O2")
    title, *_ = text.splitlines()
    assert title == f"{len(rows(text)) - 1} of {len(OPS)} ops differ"
    assert ["softmax", "deny", "(promote)"] in rows(text)
    assert text.endswith("(promote): not listed, runs in the widest dtype of its inputs.\n")


def test_lists_that_say_the_same(capsys):
    assert (
        printed(capsys, "diff", "torch:float16", "torch:bfloat16")
        == f"0 of {len(OPS)} ops differ\n"
    )


# -- why


def test_why(capsys):
    (data,) = as_data(capsys, "why", "softmax")
    assert data["why"] == "exp can overflow fp16 and the denominator is a long sum"
    assert data["names"]["tensorflow"] == ["Softmax"]
    assert data["rules"] == {
        **dict.fromkeys(["torch:O1:float16", "torch:O1:bfloat16"], "deny"),
        **dict.fromkeys(["torch:O2:float16", "torch:O2:bfloat16"], "deny"),
        **dict.fromkeys(["paddle:O1:float16", "paddle:O1:bfloat16"], "deny"),
        **dict.fromkeys(["paddle:O2:float16", "paddle:O2:bfloat16"], "(promote)"),
        **dict.fromkeys(["tensorflow:O1:float16", "tensorflow:O1:bfloat16"], "promote"),
        **dict.fromkeys(["tensorflow:O2:float16", "tensorflow:O2:bfloat16"], "promote"),
        **dict.fromkeys(["safe:O1:float16", "safe:O1:bfloat16"], "deny"),
        **dict.fromkeys(["safe:O2:float16", "safe:O2:bfloat16"], "deny"),
    }


def test_why_by_a_framework_s_name_as_tables(capsys):
    text = printed(capsys, "why", "paddle:reduce_sum", "tf:MatMul")
    assert f"sum (reduction): {OPS['sum']['why']}\n" in text
    assert f"matmul (matmul): {OPS['matmul']['why']}\n" in text
    assert "tensorflow_api  tf.reduce_sum\n" in text
    assert "paddle      deny        deny         (promote)   (promote)\n" in text


# -- translate


def test_translate(capsys):
    data = as_data(capsys, "translate", "--from", "paddle", "--to", "tf", "reduce_sum", "matmul_v2")
    assert [(each["name"], each["op"]) for each in data["ops"]] == [
        ("reduce_sum", "sum"),
        ("matmul_v2", "matmul"),
    ]
    assert data["ops"][0]["names"] == ["Sum", "tf.reduce_sum", "keras.ops.sum"]
    assert {"MatMul", "tf.matmul", "keras.ops.matmul"} <= set(data["ops"][1]["names"])


@pytest.mark.parametrize(
    "source, target, name, expected",
    [
        ("tf", "paddle", "AddV2", {"elementwise_add", "paddle.add"}),
        (
            "torch",
            "paddle",
            "torch.nn.functional.embedding",
            {"lookup_table_v2", "paddle.nn.functional.embedding"},
        ),
        (None, "torch", "dense", {"torch.nn.functional.linear", "aten::linear"}),
        ("paddle", "numpy", "paddle.sum", {"numpy.sum"}),
    ],
)
def test_translations(source, target, name, expected):
    ((_, op),) = lists.translate([name], source, target).ops
    assert set(lists.names_in(target, op_table.ops()[op])) == expected


def test_a_name_that_has_no_counterpart(capsys):
    text = printed(capsys, "translate", "--to", "numpy", "conv2d")
    assert ["conv2d", "conv2d", "(none)"] in rows(text)


def test_a_translation_says_what_paddle_s_lists_take_no_notice_of(capsys):
    data = as_data(capsys, "translate", "--from", "paddle", "--to", "torch", "matmul", "reduce_sum")
    (remark,) = data["remarks"]
    assert "'matmul' in custom_black_list has no effect" in remark
    assert remark in printed(capsys, "translate", "--from", "paddle", "--to", "torch", "matmul")


# -- wrong names

MISTAKES = {
    "a list set": (["show", "padle"], "no list set 'padle'", "did you mean 'paddle'?"),
    "the lists that are none": (["show", "native"], "has no lists", "ampbridge explain O1 torch"),
    "a level": (["show", "paddle:O3"], "'O3' is no level or dtype", "'paddle:O"),
    "a dtype": (["show", "torch:flot16"], "'flot16' is no level or dtype", "'torch:float16'"),
    "a dtype that is none": (["show", "torch:float17"], "'float17' is no", "'torch:O1:float16'"),
    "two levels": (
        ["show", "paddle:O1:O2"],
        "'O2' is no level or dtype, or one too many",
        "'paddle:O2'",
    ),
    "another device": (["show", "paddle:cuda"], "'cuda' is no level", "'paddle:O1:float16'"),
    "one lists": (
        ["diff", "torch"],
        "needs at least two list sets; got 1",
        "ampbridge lists diff torch paddle:O1",
    ),
    "an op": (["why", "softmux"], "Unknown op 'softmux'", "did you mean 'softmax'"),
    "a framework": (
        ["translate", "--from", "paddel", "--to", "tf", "sum"],
        "'paddel'",
        "'paddle'?",
    ),
    "a target": (["translate", "--to", "pytorch", "sum"], "No framework 'pytorch'", "'torch'?"),
    "a name": (
        ["translate", "--from", "paddle", "--to", "tf", "reduce_smu"],
        "the op table has no 'reduce_smu'",
        "'paddle:reduce_sum'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_names(mistake, capsys):
    arguments, says, hint = MISTAKES[mistake]
    assert main(["lists", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert hint in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("Hint: ")


def test_a_name_of_the_command_that_is_none(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["lists", "shwo", "paddle"])
    assert "invalid choice: 'shwo'" in capsys.readouterr().err


# -- how tables are printed


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_its_width_and_what_is_piped_a_line_a_row(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    table = Table("[title]", ("op", "why"), (("sum", "long " * 20 + "[/end]"),), ("remark",))
    plain, terminal = io.StringIO(), Terminal()
    table.print(plain)
    table.print(terminal)
    assert plain.getvalue() == f"{table.text(None)}\n"
    assert plain.getvalue().count("\n") == 5
    assert terminal.getvalue().count("\n") == 6
    assert "[title]" in terminal.getvalue()  # no markup
    assert "[/end]" in terminal.getvalue()


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m ampbridge lists show paddle | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("paddle:O1:float16: ")
    assert done.stderr == ""


def test_why_of_an_op_that_the_table_lacks(capsys):
    assert main(["lists", "why", "torch:my_library::my_op"]) == 0
    out = capsys.readouterr().out
    assert "an op of torch's own" in out
    assert "(follow)" in out
