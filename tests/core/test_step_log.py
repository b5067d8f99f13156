"""Results of steps in loggers: what a row says, where it goes, and that no skipped step is lost."""

import csv
import io
import os
import pty
import sys

import numpy as np
import pytest

import ampbridge as amp

FIELDS = ["step", "loss", "scale", "grad_norm", "skipped", "reason"]


class Scripted:
    """A toy step whose gradients are as given, one for each call."""

    def __init__(self, toy, gradients, **arguments):
        self.model = toy.Model(1.0)
        self._gradients = iter(gradients)
        self.call = amp.train_step(
            lambda model, *batch: (np.float32(2.0), np.zeros(1000)),
            self.model,
            toy.Optimizer(self.model),
            scaler=amp.GradScaler(8.0),
            **arguments,
        )

    def __call__(self):
        self.model.slope = next(self._gradients)
        return self.call()


@pytest.fixture
def scripted(toy):
    return lambda gradients, **arguments: Scripted(toy, gradients, **arguments)


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class SummaryWriter:
    """With the signature of torch.utils.tensorboard's."""

    def __init__(self):
        self.scalars = []

    def add_scalar(
        self,
        tag,
        scalar_value,
        global_step=None,
        walltime=None,
        new_style=False,
        double_precision=False,
    ):
        self.scalars.append((tag, float(scalar_value), global_step))


def test_each_step_is_a_row_of_a_csv_file(scripted, tmp_path):
    step = scripted([1.0, np.inf, 1.0])
    log = amp.StepLog(tmp_path / "run.csv")
    returned = [log(step()) for _ in range(3)]
    assert [result.step for result in returned] == [1, 2, 3]
    rows = rows_of(tmp_path / "run.csv")
    assert [list(row) for row in rows] == [FIELDS] * 3
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [float(row["loss"]) for row in rows] == [2.0] * 3
    assert [float(row["scale"]) for row in rows] == [8.0, 8.0, 4.0]
    assert [row["skipped"] for row in rows] == ["0", "1", "1"]
    assert [row["reason"] for row in rows] == ["", "inf", ""]
    assert rows[0]["grad_norm"] == ""


def test_the_norm_of_clipped_gradients_is_logged(scripted, tmp_path):
    result = scripted([1.0])()
    result._output = result._output._replace(grad_norm=np.float32(0.5))
    amp.StepLog(tmp_path / "run.csv")(result)
    (row,) = rows_of(tmp_path / "run.csv")
    assert row["grad_norm"] == "0.5"


def test_skipped_steps_between_rows_are_counted(scripted, tmp_path):
    step = scripted([1.0, np.inf, np.nan, 1.0, 1.0, 1.0, 1.0, 1.0, np.inf])
    with amp.StepLog(tmp_path / "run.csv", every=4) as log:
        skipped = [log(step()) and log.skipped for _ in range(9)]
    assert skipped == [0, 1, 2, 2, 2, 2, 2, 2, 3]
    rows = rows_of(tmp_path / "run.csv")
    assert [row["step"] for row in rows] == ["4", "8", "9"]
    assert [row["skipped"] for row in rows] == ["2", "2", "3"]
    assert [row["reason"] for row in rows] == ["nan", "", "inf"]
    assert rows[0]["grad_norm"] == ""


def test_results_are_read_at_rows_alone(scripted):
    class Lazy:
        """A loss on a device: reading it waits."""

        reads, ndim = 0, 0

        def __float__(self):
            Lazy.reads += 1
            return 2.0

    step = scripted([1.0] * 6)
    log = amp.StepLog(SummaryWriter(), every=3)
    for _ in range(6):
        result = step()
        result._output = result._output._replace(loss=Lazy())
        log(result)
    assert Lazy.reads == 2


def test_what_a_result_carries_is_not_kept(scripted):
    step = scripted([1.0, 1.0])
    log = amp.StepLog(SummaryWriter(), every=100)
    result = log(step())
    assert result.aux is not None
    assert log._pending[0].aux is None


def test_writers_and_functions_get_the_same_numbers(scripted):
    writer, dictionaries = SummaryWriter(), []
    step = scripted([1.0, np.nan])
    log = amp.StepLog(
        writer, lambda numbers, step: dictionaries.append((step, numbers)), prefix="train/"
    )
    log(step())
    log(step())
    assert dictionaries == [
        (1, {"train/loss": 2.0, "train/scale": 8.0, "train/skipped": 0, "train/reason": 0}),
        (2, {"train/loss": 2.0, "train/scale": 8.0, "train/skipped": 1, "train/reason": 2}),
    ]
    flat = [(tag, value, number) for number, each in dictionaries for tag, value in each.items()]
    assert writer.scalars == flat


def test_micro_batches_are_one_row(scripted, tmp_path):
    step = scripted([1.0] * 4, accumulate=2)
    log = amp.StepLog(tmp_path / "run.csv")
    for _ in range(4):
        log(step())
    assert [row["step"] for row in rows_of(tmp_path / "run.csv")] == ["1", "2"]


def test_a_dropped_micro_batch_is_counted(scripted, tmp_path):
    step = scripted([1.0, np.inf, 1.0], accumulate=2, on_overflow="drop_microbatch")
    log = amp.StepLog(tmp_path / "run.csv")
    for _ in range(3):
        log(step())
    (row,) = rows_of(tmp_path / "run.csv")
    assert (row["step"], row["skipped"], row["reason"]) == ("1", "1", "inf")


def test_a_resumed_run_appends(scripted, tmp_path):
    for _ in range(2):
        amp.StepLog(tmp_path / "run.csv")(scripted([1.0])())
    assert [row["step"] for row in rows_of(tmp_path / "run.csv")] == ["1", "1"]


def test_a_foreign_file_is_left_alone(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(amp.StateError) as caught:
        amp.StepLog(path)
    assert str(caught.value) == (
        f"{path} begins with b'a,b': it is not a log of steps.\nHint: another path, or remove the file"
    )
    assert path.read_text("utf-8") == "a,b\n1,2\n"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(amp.WriteError, match="It is a pipe or a device"):
        amp.StepLog(tmp_path / "pipe.csv")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(amp.WriteError) as caught:
        amp.StepLog(tmp_path / "none" / "run.csv")
    assert str(caught.value) == (
        f"The log {tmp_path}/none/run.csv cannot be written: No such file or directory.\n"
        "Hint: a path in a folder that exists and that you may write to"
    )


@pytest.mark.parametrize(
    "arguments, options, words",
    [
        (
            (3,),
            {},
            "A StepLog writes to paths of CSV files, to objects with add_scalar(tag, value, step), and "
            "to functions of a dictionary; 3 is none of these.\n"
            "Hint: StepLog('run.csv', SummaryWriter(), wandb.log)",
        ),
        (
            (SummaryWriter,),
            {},
            "A StepLog writes to paths of CSV files, to objects with add_scalar(tag, value, step), and "
            "to functions of a dictionary; "
            f"{SummaryWriter!r:.80} is none of these.\n"
            "Hint: StepLog('run.csv', SummaryWriter(), wandb.log)",
        ),
        (
            (),
            {"every": 0},
            "Passed every=0; allowed is a whole number from 1.\nHint: StepLog('run.csv', every=100)",
        ),
        (
            (),
            {"every": True},
            "Passed every=True; allowed is a whole number from 1.\nHint: StepLog('run.csv', every=100)",
        ),
        (
            (),
            {"progress": "yes"},
            "progress is True or False, not 'yes'.\nHint: progress=True",
        ),
        (
            (),
            {"prefix": None},
            "prefix is a string, not None.\nHint: StepLog(writer, prefix='amp/')",
        ),
    ],
)
def test_bad_arguments(arguments, options, words):
    with pytest.raises(amp.AmpBridgeError) as caught:
        amp.StepLog(*arguments, **options)
    assert str(caught.value) == words


def test_a_loss_is_no_result():
    with pytest.raises(amp.ArgumentTypeError) as caught:
        amp.StepLog()(0.5)
    assert str(caught.value) == "A StepLog logs results of steps, not float.\nHint: log(step(x, y))"


def test_a_terminal_shows_the_last_row(scripted, monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        step = scripted([1.0, np.inf])
        with amp.StepLog(progress=True) as log:
            log(step())
            log(step())
        shown = ""
        while not shown.endswith("\n"):
            shown += os.read(ours, 4096).decode()
    os.close(ours)
    assert shown == (
        "\r\x1b[2Kstep 1  loss 2  scale 8  skipped 0"
        "\r\x1b[2Kstep 2  loss 2  scale 8  skipped 1, last by inf\r\n"
    )


def test_nothing_is_shown_elsewhere(scripted, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    step = scripted([1.0])
    with amp.StepLog(progress=True) as log:
        log(step())
    assert sys.stderr.getvalue() == ""
