"""``explain``: the rows of a toy backend, and what adapters build theirs with."""

import json

import pytest

import ampbridge as amp
from ampbridge.adapters.roles.probing import FeatureTreatment
from ampbridge.policies import op_table
from ampbridge.reports.explain import FEATURES, dtype_of, sharing, unless_refused

NATIVE = FeatureTreatment("native", "why")


@pytest.fixture
def table(toy):
    return amp.explain("O1:bfloat16", "toyframework")


def test_it_has_a_row_for_each_op_in_the_table_s_order(table):
    assert [row.op for row in table.ops] == list(op_table.ops())


def test_a_row(table):
    assert table.op("matmul") == ("matmul", "allow", "bfloat16", "native", "")
    assert table.op("softmax") == ("softmax", "", "", "absent", "it has none")
    assert table.feature("O1") == ("O1", "native", "its own region")


def test_an_op_by_another_spelling(table):
    assert table.op("tf:MatMul") is table.op("matmul")


def test_some_ops_alone(table):
    assert [row.op for row in table.only(["softmax", "@"]).ops] == ["softmax", "matmul"]


def test_it_prints_as_two_tables(table):
    lines = str(table.only(["matmul", "softmax"])).splitlines()
    assert lines == [
        "Policy('O1', 'bfloat16') on toyframework (toy:0)",
        "op       category  dtype     by      why",
        "-------  --------  --------  ------  -----------",
        "matmul   allow     bfloat16  native",
        "softmax                      absent  it has none",
        "",
        "feature  by      why",
        "-------  ------  --------------",
        "O1       native  its own region",
    ]


def test_of_all_ops_it_prints_the_result_and_the_ten_that_stand_out(toy):
    policy = amp.Policy("O1", "bfloat16", deny=["tanh", "matmul"])
    lines = str(amp.explain(policy, "toyframework")).splitlines()
    assert lines[0] == f"{policy!r} on toyframework (toy:0)"
    assert lines[1] == "339 ops: 338 in bfloat16, 1 absent."
    assert lines[2].startswith("In 16 bits: matmul, mm, bmm, ")
    header = next(number for number, line in enumerate(lines) if line.startswith("op "))
    assert lines[header - 1].endswith(" ...")
    rows = [line.split()[0] for line in lines[header + 2 : header + 12]]
    assert rows == [
        "matmul",
        "tanh",
        "softmax",
        "mm",
        "bmm",
        "mv",
        "dot",
        "vdot",
        "vecdot",
        "tensordot",
    ]
    assert "".join(lines[header + 12]).startswith("The 10 of 339 rows")


def test_it_fits_two_screens():
    assert len(str(amp.explain("O1", "numpy")).splitlines()) <= 2 * 40


def test_it_is_json(table):
    data = json.loads(json.dumps(table.only(["softmax"]).to_dict()))
    assert data["policy"] == amp.Policy("O1", "bfloat16").to_dict()
    assert data["ops"] == [table.op("softmax")._asdict()]
    assert data["features"] == [table.feature("O1")._asdict()]


def test_a_backend_may_be_given_itself(toy):
    assert amp.explain(amp.Policy(), toy.Backend()).backend == "toyframework"


# -- what adapters use


@pytest.mark.parametrize(
    "category, dtype", [("allow", "float16"), ("deny", "float32"), ("promote", "inputs'")]
)
def test_the_dtype_that_a_rule_gives(category, dtype):
    assert dtype_of(category, amp.Policy()) == dtype


def test_a_shared_spelling_says_with_whom():
    policy = amp.Policy(deny=["tensordot"])
    why = sharing(policy, "matmul", "deny", "tensorflow", "MatMul")
    assert why == "one with tensordot (MatMul)"
    assert sharing(policy, "tensordot", "deny", "tensorflow", "MatMul") == ""


def test_what_a_call_refuses():
    def refuse():
        raise amp.UnsupportedError("NumPy has no compiler.\nHint: none")

    assert unless_refused(refuse, NATIVE) == ("refused", "NumPy has no compiler.")
    assert unless_refused(lambda: 1, NATIVE) is NATIVE


def test_what_float32_means_has_a_row_if_the_policy_says_it(toy):
    def shown(policy):
        return amp.explain(policy, "toyframework").features[1:]

    assert shown(amp.Policy()) == ()
    assert shown(amp.Policy(float32="ieee")) == (("float32='ieee'", "native", "float32 is IEEE's"),)
    refused = "toyframework: this adapter cannot compute float32 products in TF32."
    assert shown(amp.Policy(float32="tf32")) == (("float32='tf32'", "refused", refused),)


def test_the_features_have_names():
    assert len(set(FEATURES)) == len(FEATURES) >= 14


def test_a_listed_op_that_the_table_lacks_has_a_row_of_its_own(toy):
    policy = amp.Policy(deny=["torch:my_library::my_op"])
    table = amp.explain(policy, "toyframework")
    absent = ("torch:my_library::my_op", "", "", "absent", "an op of another framework")
    assert table.ops[-1] == table.op("torch:my_library::my_op") == absent


def test_a_function_is_cast_by_ampbridge_on_every_backend(toy):
    table = amp.explain(amp.Policy("O1", "bfloat16", deny=["json:dumps"]), "toyframework")
    row = table.op("json:dumps")
    assert (row.category, row.dtype, row.by) == ("deny", "float32", "ampbridge")


def test_one_that_is_not_listed_has_none(table):
    with pytest.raises(amp.ArgumentError, match="'tf:Betainc' is not in the op table, and Policy"):
        table.op("tf:Betainc")
