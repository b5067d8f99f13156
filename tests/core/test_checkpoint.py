"""Checkpoints: files that are whole or refused, and training states that go on."""

import contextlib
import json
import os
import random
import shutil
import signal
import stat
from functools import partial
from hashlib import blake2b
from types import SimpleNamespace

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.adapters.ranks import act_for_all
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import atomic_files, checkpoint, tensor_file
from ampbridge.checkpoints.checkpoint import Checkpoint
from ampbridge.checkpoints.weights import Weight

TENSORS = {
    "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "signed zero and nan": np.array([-0.0, np.nan, np.inf], np.float32),
    "flags": np.array([True, False]),
}
STATE = {"step": 3, "nested": {"list": [1, 2.5, None, "text"]}}

FLIPS = int(os.environ.get("AMPBRIDGE_BIT_FLIPS", "200"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "saved"
    checkpoint.write(path, Checkpoint(STATE, TENSORS))
    return path


def refuses(path, match="Hint: "):
    return pytest.raises(amp.StateError, match=match)


# -- files


def test_a_save_between_the_two_files_is_read(folder, monkeypatch):
    """It removes the arrays that the old document names, which has been read by then."""
    read_tensors = checkpoint._read_tensors

    def after_a_save(file, described):
        monkeypatch.undo()
        checkpoint.write(folder, Checkpoint({"step": 4}, {"matrix": np.ones(2, np.float32)}))
        return read_tensors(file, described)

    monkeypatch.setattr(checkpoint, "_read_tensors", after_a_save)
    state, tensors = checkpoint.read(folder)
    assert state == {"step": 4}
    assert tensors.keys() == {"matrix"}


def test_everything_comes_back_bit_by_bit(folder):
    state, tensors = checkpoint.read(folder)
    assert state == STATE
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        assert tensors[name].tobytes() == array.tobytes()


def test_there_is_no_pickle(folder):
    """One file is JSON; the other is a header of JSON and the tensors' bytes, and nothing else."""
    state, tensors = sorted(folder.iterdir(), key=lambda file: file.suffix)
    assert (state.suffix, tensors.suffix) == (".json", ".safetensors")
    json.loads(state.read_text())
    data = tensors.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    spans = sorted(tuple(tensor["data_offsets"]) for tensor in header.values())
    assert {tensor["dtype"] for tensor in header.values()} <= {"F32", "I64", "BOOL"}
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == len(data) - end == sum(array.nbytes for array in TENSORS.values())


def test_a_new_checkpoint_takes_the_place_of_the_old_one(folder):
    checkpoint.write(folder, Checkpoint({"step": 4}, {"other": np.ones(2)}))
    state, tensors = checkpoint.read(folder)
    assert (state, list(tensors)) == ({"step": 4}, ["other"])
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("calls_until_the_crash", range(11))
def test_a_crash_while_saving_leaves_the_old_checkpoint_whole(
    folder, monkeypatch, calls_until_the_crash
):
    """Killed at each of the system calls by which a save reaches the disk."""
    left = [calls_until_the_crash]

    class Killed(BaseException):
        pass

    def dying(function):
        def call(*args, **kwargs):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "fsync", "replace", "unlink"):
            patch.setattr(os, name, dying(getattr(os, name)))
        # What a process that is killed would not do either:
        patch.setattr(atomic_files, "remove", lambda file: None)
        patch.setattr(checkpoint, "_remove_leftovers", lambda folder: None)
        with contextlib.suppress(Killed):
            checkpoint.write(folder, Checkpoint({"step": 4}, {"other": np.ones(2)}))
    state, tensors = checkpoint.read(folder)
    assert (state["step"], len(tensors)) in [(3, len(TENSORS)), (4, 1)]
    checkpoint.write(folder, Checkpoint({"step": 5}, {}))  # and leftovers are no hindrance
    assert checkpoint.read(folder).state == {"step": 5}
    assert len(list(folder.iterdir())) == 2


def test_only_what_a_save_has_made_is_removed(folder):
    foreign = ["movie.mkv.partial", "tensors-mine.safetensors", ".1234.partial", "b.safetensors"]
    for name in foreign:
        (folder / name).touch()
    (folder / f"tensors-{'0' * 32}.safetensors").mkdir()
    checkpoint.write(folder, Checkpoint({"step": 4}, {"other": np.ones(2)}))
    assert checkpoint.read(folder).state == {"step": 4}
    names = {file.name for file in folder.iterdir()}
    assert names > {*foreign, f"tensors-{'0' * 32}.safetensors", "state.json"}
    assert len(names) == len(foreign) + 3


def test_what_a_killed_save_left_makes_room_before_anything_is_written(folder, monkeypatch):
    (folder / f"tensors-{'0' * 32}.safetensors").touch()
    present = len(list(folder.iterdir()))
    genuine, counts = atomic_files.write, []

    def counting(place, *parts, follow):
        counts.append(len(list(folder.iterdir())))
        genuine(place, *parts, follow=follow)

    monkeypatch.setattr(atomic_files, "write", counting)
    checkpoint.write(folder, Checkpoint({"step": 4}, {}))
    assert counts == [present - 1 + 1, present + 1]  # one file less, and the lock


def test_nothing_is_removed_while_nobody_knows_which_file_is_in_use(folder):
    (folder / "state.json").write_text("{")
    before = sorted(folder.iterdir())
    checkpoint._remove_leftovers(folder)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800b"])
@pytest.mark.parametrize("call", [checkpoint.read, lambda path: checkpoint.write(path, ({}, {}))])
def test_what_is_no_path_is_refused(path, call):
    with pytest.raises(
        amp.ArgumentError, match=r"No file or folder can have the path .*\nHint: step"
    ):
        call(path)


@pytest.mark.parametrize("path", [None, b"runs/one", 1, 1.5, ["runs"], os])
@pytest.mark.parametrize(
    "call",
    [
        checkpoint.read,
        lambda path: checkpoint.write(path, ({}, {})),
        amp.Recipe().save,
        amp.Recipe.load,
        amp.lens.Recording.load,
        amp.port.read,
        lambda path: amp.port.read("train.py", config=path or b""),
    ],
)
def test_a_path_is_text_or_a_path(path, call):
    with pytest.raises(
        amp.ArgumentTypeError, match=r"A path is a str or a pathlib.Path, not .*\nHint: "
    ):
        call(path)


@pytest.mark.parametrize("name", ["n" * 300, "folder/" * 3000])
def test_a_name_that_is_too_long_is_refused_in_short(name, tmp_path):
    path = str(tmp_path / name)
    for call in (amp.Recipe().save, lambda path: checkpoint.write(path, Checkpoint({}, {}))):
        with pytest.raises(amp.AmpBridgeError, match=r"File name too long.*\nHint: ") as error:
            call(path)
        assert len(str(error.value)) < 400
    with pytest.raises(amp.WriteError):
        checkpoint.write(path, Checkpoint({}, {}))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_save_waits_for_no_pipe_and_follows_no_link(kind, tmp_path):
    """Neither to the lock, nor to the files that are written."""
    make = os.mkfifo if kind == "pipe" else partial(os.symlink, tmp_path / "elsewhere")
    make(tmp_path / checkpoint.LOCK_FILE)
    with pytest.raises(amp.WriteError, match="is a link, a pipe or a device, not a file"):
        checkpoint.write(tmp_path, Checkpoint(STATE, TENSORS))
    os.remove(tmp_path / checkpoint.LOCK_FILE)
    checkpoint.write(tmp_path, Checkpoint(STATE, TENSORS))
    (file,) = tmp_path.glob("tensors-*")
    os.remove(file)
    make(file)
    checkpoint.write(tmp_path, Checkpoint(STATE, TENSORS))
    assert checkpoint.read(tmp_path).state == STATE
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_lock_that_becomes_a_pipe_when_it_was_looked_at_holds_nobody_up(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / checkpoint.LOCK_FILE)
    monkeypatch.setattr(atomic_files, "check_regular", lambda *_, **__: None)
    with pytest.raises(amp.WriteError):
        checkpoint.write(tmp_path, Checkpoint(STATE, TENSORS))


def test_files_have_the_mode_that_the_umask_gives(tmp_path):
    before = os.umask(0o027)
    try:
        checkpoint.write(tmp_path / "a", Checkpoint(STATE, TENSORS))
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "a").iterdir()}
    assert modes == ({0o640} if os.name == "posix" else modes)


@pytest.mark.parametrize(
    ("state", "tensors"),
    [
        ({"lr": float("nan")}, {}),
        ({"lr": object()}, {}),
        ({}, {"x": np.zeros(2, np.complex128)}),
        ({}, {"x": np.array(["text"])}),
    ],
    ids=["nan", "object", "complex128", "text"],
)
def test_what_no_file_holds_is_refused(folder, state, tensors):
    with pytest.raises(amp.UnsupportedError, match="A checkpoint cannot hold"):
        checkpoint.write(folder, Checkpoint(state, tensors))
    assert checkpoint.read(folder).state == STATE


def test_safetensors_reads_every_dtype_as_it_was(tmp_path):
    kinds = [np.dtype(name) for name in tensor_file._DTYPES]
    tensors = {kind.name: np.arange(3).astype(kind) for kind in kinds}
    tensors["big end first"] = np.arange(3, dtype=">f4")
    tensors["turned"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    checkpoint.write(tmp_path, Checkpoint({}, tensors))
    loaded = checkpoint.read(tmp_path).tensors
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype.newbyteorder("=")
        assert loaded[name].tolist() == array.tolist()
    (file,) = tmp_path.glob("*.safetensors")
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert all(header[name]["data_offsets"][0] % tensors[name].itemsize == 0 for name in tensors)


def test_the_tensor_file_is_the_one_that_safetensors_would_write(folder):
    from safetensors.numpy import save

    (file,) = folder.glob("*.safetensors")
    ours = {name: np.ascontiguousarray(array) for name, array in TENSORS.items()}
    ours["scalar"] = TENSORS["scalar"]
    assert len(file.read_bytes()) == len(save(ours))


# -- state.json


def test_a_state_file_of_the_largest_size_is_read_and_no_larger_one(folder, monkeypatch):
    size = (folder / "state.json").stat().st_size
    monkeypatch.setattr(checkpoint, "LARGEST_STATE_FILE", size)
    assert checkpoint.read(folder).state == STATE
    monkeypatch.setattr(checkpoint, "LARGEST_STATE_FILE", size - 1)
    with refuses(folder, r"is too large for a checkpoint's state\.json"):
        checkpoint.read(folder)


def test_a_digest_cannot_be_left_out(folder):
    file = folder / "state.json"
    document = json.loads(file.read_text())
    del document["blake2b"]
    file.write_text(json.dumps(document))
    with refuses(folder, "has missing or unexpected parts"):
        checkpoint.read(folder)


def test_it_may_be_spaced_in_another_way(folder):
    file = folder / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text())))
    assert checkpoint.read(folder).state == STATE


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version": 1', '"version": true', "is of version True"),
        ('"version": 1', '"version": 1.0', "is of version 1.0"),
        ('"version": 1', '"version": 1, "version": 1', "it has a duplicate key"),
        ('"step": 3', '"step": 3, "step": 4', "it has a duplicate key"),
        ('"version": 1', '"version": 1, "more": 1', "has missing or unexpected parts"),
    ],
    ids=["true", "1.0", "version twice", "step twice", "a key more"],
)
def test_what_json_lets_through_is_refused(folder, old, new, says):
    file = folder / "state.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with refuses(folder, says):
        checkpoint.read(folder)


@pytest.mark.parametrize(
    "change", [lambda state: state.update(step=4), lambda state: state.update(more=1)]
)
def test_a_changed_value_is_refused(folder, change):
    file = folder / "state.json"
    document = json.loads(file.read_text())
    change(document["state"])
    file.write_text(json.dumps(document))
    with refuses(folder, "damaged: it is not the file that was saved"):
        checkpoint.read(folder)


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path):
    file = tmp_path / "notes"
    file.write_text("mine")
    with refuses(file, "is a file"):
        checkpoint.write(file, Checkpoint({}, {}))
    assert file.read_text() == "mine"


def test_another_program_s_state_is_left_alone(tmp_path):
    (tmp_path / "state.json").write_text('{"mine": 1}')
    with refuses(tmp_path, "not an ampbridge checkpoint"):
        checkpoint.write(tmp_path, Checkpoint({}, {}))
    assert (tmp_path / "state.json").read_text() == '{"mine": 1}'


def test_where_there_is_nothing(tmp_path):
    with refuses(tmp_path, "There is no checkpoint"):
        checkpoint.read(tmp_path / "nowhere")
    with refuses(tmp_path, "There is no checkpoint"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("change", ["truncated", "longer", "flipped", "gone", "a folder"])
def test_a_damaged_tensor_file_is_refused(folder, change):
    (file,) = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    if change == "flipped":
        data[-1] ^= 1
    file.unlink()
    if change == "a folder":
        file.mkdir()
    elif change != "gone":
        tail = {"truncated": data[:-3], "longer": data + b"x", "flipped": data}
        file.write_bytes(tail[change])
    with refuses(folder):
        checkpoint.read(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"format": "ampbridge checkpoint"}',
        '{"format": "ampbridge checkpoint", "version": 99}',
        '{"format": "ampbridge checkpoint", "version": 1, "tensors": {}, "state": {}}',
        '{"format": "ampbridge checkpoint", "version": 1, "state": {}, '
        '"tensors": {"file": "../../etc/passwd", "bytes": 1, "blake2b": ""}}',
        '{"format": NaN}',
        "[" * 100_000,
        "\ud800",
    ],
)
def test_a_damaged_state_file_is_refused(folder, text):
    (folder / "state.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with refuses(folder):
        checkpoint.read(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "tensors-1.safetensors", 3, None])
def test_a_tensor_file_has_a_name_of_ours(folder, name):
    """What it names is there, and undamaged."""
    file = folder / "state.json"
    document = json.loads(file.read_text())
    del document["blake2b"]
    here = folder / document["tensors"]["file"]
    for other in (folder.parent / "outside.safetensors", folder / "tensors-1.safetensors"):
        other.write_bytes(here.read_bytes())
    document["tensors"]["file"] = name
    compact = json.dumps(document, separators=(",", ":")).encode()
    document["blake2b"] = blake2b(compact, digest_size=16).hexdigest()
    file.write_text(json.dumps(document))
    with refuses(folder, "names no tensor file"):
        checkpoint.read(folder)


def test_random_damage_is_refused_or_changes_nothing(folder, tmp_path):
    draw = random.Random(3)
    files = [file.name for file in folder.iterdir()]
    for number in range(300):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        file = copy / draw.choice(files)
        data = bytearray(file.read_bytes())
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data[: draw.randint(0, len(data))] if draw.random() < 0.3 else data)
        try:
            state, tensors = checkpoint.read(copy)
        except amp.StateError:
            continue
        assert isinstance(state, dict)
        assert all(tensors[n].tobytes() == TENSORS[n].tobytes() for n in TENSORS)


# -- the training state


class Scheduler:
    """Counts, and says so."""

    def __init__(self):
        self.count = 0

    def step(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def loss_fn(model):
    return np.float32(1.0)


@pytest.fixture
def make(toy):
    def step(**arguments):
        model = toy.Model(2.0)
        settings = {"scaler": GradScaler(64.0, growth_interval=2), "scheduler": Scheduler()}
        return amp.train_step(loss_fn, model, toy.Optimizer(model), **{**settings, **arguments})

    return step


def facts(step):
    scheduler = step._trained.scheduler
    return (step.model.weight.item(), step.optimizer.steps, scheduler.count, step.state_dict())


def test_a_flipped_bit_is_refused_or_without_effect(make, toy, tmp_path, monkeypatch):
    """Of any file of a checkpoint, by turns; weights are most of the tensor file."""
    monkeypatch.setattr(
        toy.Backend,
        "weights",
        lambda self, model: [Weight("weight", "dense.kernel", "o", model.weight.shape)],
    )
    step, draw = make(), random.Random(5)
    step.model.weight = np.zeros(1000, np.float32)

    def everything():
        return step.model.weight.tobytes(), step.optimizer.steps, step.state_dict()

    step()
    step.save(tmp_path / "a")
    saved = everything()
    step()
    present = everything()
    intact = [(file, file.read_bytes()) for file in sorted((tmp_path / "a").iterdir())]
    refused = 0
    for number in range(FLIPS):
        file, content = intact[number % len(intact)]
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            step.load(tmp_path / "a")
        except amp.StateError:
            refused += 1
        else:
            present = saved
        assert everything() == present
        file.write_bytes(content)
    print(f"{FLIPS} flipped bits: {refused} refused, the others without effect")
    assert refused > 0.9 * FLIPS


def test_training_goes_on_from_a_checkpoint(make, tmp_path):
    step = make()
    for _ in range(3):
        step()
    step.save(tmp_path / "a")
    other = make()
    other.load(tmp_path / "a")
    assert facts(other) == facts(step)
    step(), other()
    assert facts(other) == facts(step)


def test_a_step_adopts_all_but_the_optimizer(make, tmp_path):
    step = make()
    for _ in range(3):
        step()
    step.save(tmp_path / "a")
    other = make()
    report = other.adopt(tmp_path / "a")
    assert [match.how for match in report] == ["name"]
    assert other.model.weight == step.model.weight
    assert other.state_dict() == step.state_dict()
    assert (other.optimizer.steps, step.optimizer.steps) == (0, 3)


def test_whole_numbers_that_the_checkpoint_has_not_are_kept(make, toy, tmp_path, monkeypatch):
    step = make()
    step()
    step.save(tmp_path / "a")
    written = {}
    places = Weight("places", "other.places", "a", (3,), floating=False)
    weights, read = toy.Backend.weights, toy.Backend.read_weights
    monkeypatch.setattr(toy.Backend, "weights", lambda self, model: [places, *weights(self, model)])
    monkeypatch.setattr(
        toy.Backend,
        "read_weights",
        lambda self, model: {"places": np.arange(3), **read(self, model)},
    )
    monkeypatch.setattr(
        toy.Backend, "write_weights", lambda self, model, values: written.update(values)
    )
    report = amp.load_weights(tmp_path / "a", toy.Model())
    assert report.kept == (places,)
    assert {name: value.tolist() for name, value in written.items()} == {
        "places": [0, 1, 2],
        "weight": step.model.weight.tolist(),
    }


def test_adopting_what_does_not_fit_changes_nothing(make, tmp_path):
    step = make()
    step()
    step.save(tmp_path / "a")
    state, tensors = checkpoint.read(tmp_path / "a")
    state["weights"][0]["role"] = "norm.scale"
    checkpoint.write(tmp_path / "a", Checkpoint(state, tensors))
    other = make()
    before = facts(other)
    with refuses(tmp_path, "do not pair up"):
        other.adopt(tmp_path / "a")
    assert facts(other) == before


@pytest.fixture
def ranks(toy, monkeypatch):
    """``acting`` is whether this process is the one that writes; ``texts`` are what it tells the others."""
    ranks = SimpleNamespace(acting=True, texts=[], failure=None)

    def told(text):
        ranks.texts.append(text)
        return text if ranks.acting else ranks.failure

    def on_one_rank(self, model, action):
        act_for_all(action, ranks.acting, told)

    monkeypatch.setattr(toy.Backend, "on_one_rank", on_one_rank)
    return ranks


def test_one_rank_writes_for_all(make, tmp_path, ranks):
    step = make()
    ranks.acting = False
    step.save(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    ranks.acting = True
    step.save(tmp_path / "a")
    assert ranks.texts == [None, None]
    make().load(tmp_path / "a")


def test_all_ranks_hear_of_a_failure(make, tmp_path, ranks):
    step = make()
    (tmp_path / "a").touch()
    with refuses(tmp_path, "is a file"):
        step.save(tmp_path / "a")
    assert ranks.texts[0].startswith("StateError: ")
    ranks.acting, ranks.failure = False, ranks.texts[0]
    with refuses(tmp_path, "rank that acts for all could not. StateError: .* is a file"):
        step.save(tmp_path / "a")


@pytest.mark.parametrize("policy", ["O0", amp.Policy("O2", masters=None)])
def test_a_checkpoint_of_another_policy_changes_nothing(make, tmp_path, policy):
    make(policy="O1").save(tmp_path / "a")
    other = make(policy=policy)
    other()
    before = facts(other)
    with refuses(tmp_path, "was saved under"):
        other.load(tmp_path / "a")
    assert facts(other) == before


@pytest.mark.parametrize("call", ["load", "adopt"])
def test_an_impossible_scaler_leaves_the_weights_as_they_are(make, tmp_path, call):
    step = make()
    step()
    step.save(tmp_path / "a")
    state, tensors = checkpoint.read(tmp_path / "a")
    state["training"]["scaler"]["scale"] = -1.0
    checkpoint.write(tmp_path / "a", Checkpoint(state, tensors))
    other = make()
    other(), other()
    before = facts(other)
    with refuses(tmp_path, "impossible value"):
        getattr(other, call)(tmp_path / "a")
    assert facts(other) == before


def test_what_does_not_fit_the_optimizer_changes_nothing(make, toy, tmp_path, monkeypatch):
    step = make()
    step()
    step.save(tmp_path / "a")
    other = make()
    other(), other()
    before = facts(other)
    genuine = toy.Backend.write_optimizer

    def refusing(self, optimizer, model, state):
        genuine(self, optimizer, model, state)
        if state.settings["steps"] == 1:
            raise amp.StateError("other slots\nHint: an adapter's")

    monkeypatch.setattr(toy.Backend, "write_optimizer", refusing)
    with refuses(tmp_path, r"does not fit this optimizer .*: other slots\nHint: make .*saved\.$"):
        other.load(tmp_path / "a")
    assert facts(other) == before


@pytest.mark.parametrize("part", ["slots", "settings"])
def test_what_is_overwritten_in_place_is_written_back(make, toy, tmp_path, monkeypatch, part):
    """Of an optimizer with buffers that none of its attributes show; writing makes an attribute."""
    buffers = {"slots": np.array([7.0]), "settings": np.array([3.0])}

    def read(self, optimizer, model):
        slots, settings = {"weight/slot": buffers["slots"].copy()}, buffers["settings"].tolist()
        return OptimizerState(slots, {"rates": settings})

    def write(self, optimizer, model, state):
        optimizer.slot = buffers["slots"][...] = state.slots["weight/slot"]
        buffers["settings"][...] = state.settings["rates"]

    def refusing(self, state):
        raise ValueError

    monkeypatch.setattr(toy.Backend, "read_optimizer", read)
    monkeypatch.setattr(toy.Backend, "write_optimizer", write)
    step = make()
    step.save(tmp_path / "a")
    buffers[part][...] = 5.0
    attributes = dict(vars(step.optimizer))
    monkeypatch.setattr(Scheduler, "load_state_dict", refusing)
    with refuses(tmp_path, "does not fit this optimizer"):
        step.load(tmp_path / "a")
    assert buffers[part] == 5.0
    assert vars(step.optimizer) == attributes


@pytest.mark.parametrize(
    "raised", [IndexError, AttributeError, OSError, MemoryError, RecursionError, KeyboardInterrupt]
)
@pytest.mark.parametrize("part", ["scheduler", "optimizer", "weights"])
def test_whatever_is_raised_while_loading_changes_nothing(
    make, toy, tmp_path, monkeypatch, raised, part
):
    """After the part has been changed, and to something that it was never told."""
    step = make()
    step()
    step.save(tmp_path / "a")
    other = make()
    other(), other()
    scheduler, optimizer = other._trained.scheduler, other.optimizer
    scheduler.inner = [Scheduler(), {"rates": [0.1]}]
    scheduler.inner.append(scheduler)
    optimizer.held = held = [object()]
    before, inner, attributes = facts(other), [*scheduler.inner], dict(vars(optimizer))

    def loading(self, state):
        scheduler.inner[0].count, scheduler.count, scheduler.half = 7, 7, True
        scheduler.inner[1]["rates"].append(0.2)
        scheduler.inner.pop()
        scheduler.inner = []
        if part == "scheduler":
            raise raised

    def failing(write, arguments):
        optimizer.held.clear()
        optimizer.held = optimizer.more = 3
        write(*arguments)
        del optimizer.steps  # it cannot be read any more
        raise raised

    monkeypatch.setattr(Scheduler, "load_state_dict", loading)
    name = {"optimizer": "write_optimizer", "weights": "write_weights"}.get(part)
    if name is not None:
        genuine, calls = getattr(toy.Backend, name), []

        def once(*arguments):
            calls.append(name)
            if len(calls) == 1:
                failing(genuine, arguments)
            genuine(*arguments)

        monkeypatch.setattr(toy.Backend, name, once)
    with pytest.raises(KeyboardInterrupt if raised is KeyboardInterrupt else amp.StateError):
        other.load(tmp_path / "a")
    assert facts(other) == before
    assert vars(scheduler).keys() == {"count", "inner"}
    assert all(one is was for one, was in zip(scheduler.inner, inner, strict=True))
    assert (scheduler.inner[0].count, scheduler.inner[1]) == (0, {"rates": [0.1]})
    assert vars(optimizer).keys() == attributes.keys()
    assert optimizer.held is held
    assert len(held) == 1


@pytest.mark.parametrize(
    ("call", "method"), [("load", "write_optimizer"), ("adopt", "write_weights")]
)
def test_ctrl_c_waits_while_a_load_takes_effect(make, toy, tmp_path, monkeypatch, call, method):
    step = make()
    step()
    step.save(tmp_path / "a")
    genuine = getattr(toy.Backend, method)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        genuine(*arguments)

    other, undisturbed = make(), make()
    getattr(undisturbed, call)(tmp_path / "a")
    monkeypatch.setattr(toy.Backend, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(other, call)(tmp_path / "a")
    assert facts(other) == facts(undisturbed)
    assert facts(other) != facts(make())


def test_a_checkpoint_without_a_scheduler_does_not_load_into_a_step_with_one(make, tmp_path):
    make(scheduler=None).save(tmp_path / "a")
    other = make()
    before = facts(other)
    with refuses(tmp_path, "scheduler"):
        other.load(tmp_path / "a")
    assert facts(other) == before


def test_numbers_by_which_a_scheduler_looks_up_stay_numbers(make, tmp_path):
    state = {"at": {30: 1, 60: 2}, "inner": [{0: {"a": 1}}, {}], "rate": [0.1, 0.2]}

    class Milestones(Scheduler):
        def state_dict(self):
            return state

        def load_state_dict(self, state):
            self.loaded = state

    make(scheduler=Milestones()).save(tmp_path / "a")
    other = make(scheduler=Milestones())
    other.load(tmp_path / "a")
    assert other._trained.scheduler.loaded == state


class WarmUp:
    """As many scripts have it: it counts, and nobody asks it."""

    def __init__(self):
        self.n = 0

    def step(self):
        self.n += 1


class CallableWarmUp(WarmUp):
    __call__ = WarmUp.step


class SaidButNotTaken(WarmUp):
    def state_dict(self):
        return {"n": self.n}


@pytest.mark.parametrize("kind", [WarmUp, CallableWarmUp, SaidButNotTaken])
def test_a_scheduler_that_cannot_be_restored_is_not_saved_as_if_it_had_no_state(
    make, tmp_path, kind
):
    step = make(scheduler=kind())
    step()
    with pytest.raises(amp.UnsupportedError) as caught:
        step.save(tmp_path / "a")
    assert str(caught.value) == (
        f"A checkpoint cannot contain the state of {kind.__name__}: it has no state_dict() and "
        f"load_state_dict().\nHint: give {kind.__name__} both; or, if it has no state or you save "
        "it yourself, train_step(..., scheduler=scheduler.step)."
    )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("function", [WarmUp().step, lambda: None, partial(print, end="")])
def test_the_state_of_a_function_is_its_caller_s(make, tmp_path, function):
    step = make(scheduler=function)
    step()
    step.save(tmp_path / "a")
    make(scheduler=function).load(tmp_path / "a")


@pytest.mark.parametrize("value", [print, float("nan")], ids=["a function", "nan"])
def test_a_scheduler_whose_state_is_no_data_is_refused(make, tmp_path, value):
    class Opaque(Scheduler):
        def state_dict(self):
            return {"value": value}

    with pytest.raises(amp.UnsupportedError, match="not plain data"):
        make(scheduler=Opaque()).save(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"weights": []},
        {"weights": [3]},
        {"weights": [{"name": "weight", "role": "dense.kernel", "axes": "oi", "shape": [1]}]},
        {"weights": [{"name": "weight", "role": "dense.kernel", "axes": "o", "shape": [2]}]},
        {"weights": [{"name": "other", "role": "dense.kernel", "axes": "o", "shape": [1]}]},
        {"weights": [{"name": "weight", "role": "dense.kernel", "axes": "o", "shape": "1"}]},
        {"weights": [{"name": "weight", "role": "dense.kernel", "axes": "oi", "shape": [1, 1, 1]}]},
        {"weights": [{"name": "weight", "role": "dense.kernel", "axes": ["o"], "shape": [1]}]},
        {"weights": [{"name": 4, "role": "dense.kernel", "axes": "o", "shape": [1]}]},
        {"training": {}},
        {"training": None},
        {"optimizer": None},
        {"optimizer": {}},
        {"scheduler": {"count of what": 3}},
        {"scheduler": 4},
    ],
    ids=str,
)
def test_an_impossible_training_state_changes_nothing(make, tmp_path, change):
    step = make()
    step()
    step.save(tmp_path / "a")
    state, tensors = checkpoint.read(tmp_path / "a")
    checkpoint.write(tmp_path / "a", Checkpoint({**state, **change}, tensors))
    other = make()
    other(), other()
    before = facts(other)
    with refuses(tmp_path):
        other.load(tmp_path / "a")
    assert facts(other) == before
