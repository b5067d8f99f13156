"""Long reports show the rows that matter most, and all rows on request."""

from pathlib import Path

import numpy as np
import pytest

from ampbridge import cli, lens
from ampbridge_numpy import nn

LAYERS, TINY = 24, 17


class Deep(nn.Module):
    """The values of one of its layers are zero in float16."""

    def __init__(self):
        self.layers = [nn.Linear(4, 4, rng=i) for i in range(LAYERS)]
        self.layers[TINY].weight[...] *= np.float32(1e-9)

    def forward(self, x):
        for layer in self.layers:
            x = nn.gelu(layer(x))
        return x


X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def loss_fn(model, x):
    return (model(x) ** 2).mean()


@pytest.fixture(scope="module")
def ranges():
    return lens.ranges(loss_fn, Deep(), X)


@pytest.fixture(scope="module")
def census():
    return lens.census(loss_fn, Deep(), X)  # its times differ from pass to pass


def test_long_ranges_show_the_rows_that_lose_most(ranges):
    shown = ranges.short()
    assert len(ranges.rows) > 20
    assert len(shown.rows) == 10
    (over,) = [row for row in ranges.rows if row.values.overflowing]
    assert (over.kind, over.dtype) == ("gradient", "float32")  # the loss's: float16 never has it
    low = [row for row in ranges.rows if row.kind == "parameter" or row.dtype != "float32"]
    most = sorted((row.values.flushed for row in low), reverse=True)[:10]
    assert most[0] == 1.0
    shares = [float(row[6].strip("<%")) / 100 for row in shown.rows]
    assert shares == pytest.approx(most, abs=1e-3)
    remark = (
        f"The 10 of {len(ranges.rows)} rows of which float16 would lose most. "
        "All rows: print(report.table()), or --all on the command line."
    )
    assert shown.remarks[-1] == remark
    assert str(ranges) == str(shown)


def test_the_table_has_all_rows(ranges, census):
    for report in (ranges, census):
        assert len(report.table().rows) == len(report.rows) == len(report.to_dict()["rows"])


def test_a_long_census_shows_the_ops_that_take_longest(census):
    shown = census.short()
    shares = sorted((row.share for row in census.rows), reverse=True)[:10]
    assert [row[5] for row in shown.rows] == [f"{share:.1%}" for share in shares]
    assert "rows that take longest" in shown.remarks[-1]


def test_a_short_report_is_whole():
    report = lens.census(lambda model, x: model(x).mean(), nn.Linear(4, 4, rng=0), X)
    assert str(report) == str(report.table())


@pytest.mark.parametrize("kind", ["census", "ranges"])
def test_all_rows_on_the_command_line(kind, tmp_path, capsys):
    file = tmp_path / "deep.py"
    file.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_short_reports as deep\n"
        "from ampbridge.workloads import Workload\n"
        "from ampbridge_numpy import optim\n"
        "def build(backend, seed):\n"
        "    model = deep.Deep()\n"
        "    optimizer = optim.SGD(model.parameters(), 0.1)\n"
        "    return Workload(model, optimizer, deep.loss_fn, [(deep.X,)])\n"
    )
    assert cli.main(["lens", kind, str(file), "--quiet"]) == 0
    short = capsys.readouterr().out.splitlines()
    assert cli.main(["lens", kind, str(file), "--quiet", "--all"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert len(short) < 16 < LAYERS < len(whole)
