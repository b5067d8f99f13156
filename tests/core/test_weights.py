"""Which weight of a checkpoint belongs to which of a model, by worked examples."""

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.checkpoints.weights import Weight, match_weights

TORCH = [
    Weight("0.weight", "dense.kernel", "oi", (8, 4)),
    Weight("0.bias", "dense.bias", "o", (8,)),
    Weight("1.weight", "norm.scale", "c", (8,)),
    Weight("1.bias", "norm.offset", "c", (8,)),
    Weight("2.weight", "dense.kernel", "oi", (8, 8)),
    Weight("2.bias", "dense.bias", "o", (8,)),
]
KERAS = [
    Weight("dense/kernel", "dense.kernel", "io", (4, 8)),
    Weight("dense/bias", "dense.bias", "o", (8,)),
    Weight("layer_norm/gamma", "norm.scale", "c", (8,)),
    Weight("layer_norm/beta", "norm.offset", "c", (8,)),
    Weight("dense_1/kernel", "dense.kernel", "io", (8, 8)),
    Weight("dense_1/bias", "dense.bias", "o", (8,)),
]


def pairs(report):
    return {match.target.name: match.source.name for match in report}


IN_ORDER = {k.name: t.name for k, t in zip(KERAS, TORCH, strict=True)}


def test_other_names_are_matched_in_order():
    report = match_weights(TORCH, KERAS)
    assert pairs(report) == IN_ORDER
    assert {match.how for match in report} == {"order"}


def test_the_order_of_one_role_and_shape_counts_alone():
    """Keras lists a normalization's weights after its own fashion."""
    shuffled = [KERAS[i] for i in (3, 2, 0, 1, 4, 5)]
    assert pairs(match_weights(TORCH, shuffled)) == IN_ORDER


def test_equal_names_win_over_the_order():
    swapped = [TORCH[4], TORCH[1], TORCH[2], TORCH[3], TORCH[0], TORCH[5]]
    report = match_weights(TORCH, swapped)
    assert all(match.target == match.source for match in report)
    assert {match.how for match in report} == {"name"}


def test_a_name_of_another_role_is_no_match():
    sources = [Weight("x", "dense.bias", "o", (3,)), Weight("y", "norm.scale", "c", (3,))]
    targets = [Weight("y", "dense.bias", "o", (3,)), Weight("x", "norm.scale", "c", (3,))]
    assert pairs(match_weights(sources, targets)) == {"y": "x", "x": "y"}


def test_a_mapping_wins_over_all():
    report = match_weights(TORCH, KERAS, {"dense/bias": "2.bias", "dense_1/bias": "0.bias"})
    assert pairs(report) == {**IN_ORDER, "dense/bias": "2.bias", "dense_1/bias": "0.bias"}
    assert [m.how for m in report].count("mapping") == 2


@pytest.mark.parametrize(
    "source_axes, target_axes",
    [("oi", "io"), ("oihw", "hwio"), ("hwio", "oihw"), ("oihw", "oihw"), ("oiw", "wio")],
)
def test_axes_are_turned_into_the_target_s_layout(source_axes, target_axes):
    sizes = {"o": 2, "i": 3, "h": 4, "w": 5}
    source = Weight("s", "conv.kernel", source_axes, tuple(sizes[a] for a in source_axes))
    target = Weight("t", "conv.kernel", target_axes, tuple(sizes[a] for a in target_axes))
    values = np.random.default_rng(0).normal(size=source.shape)
    (match,) = match_weights([source], [target])
    turned = match.converted(values)
    assert turned.shape == target.shape
    np.testing.assert_array_equal(turned, np.einsum(f"{source_axes}->{target_axes}", values))


def test_equal_sizes_do_not_hide_a_turned_kernel():
    source, target = TORCH[4], KERAS[4]
    values = np.arange(64.0).reshape(8, 8)
    (match,) = match_weights([source], [target])
    np.testing.assert_array_equal(match.converted(values), values.T)


@pytest.mark.parametrize("missing", range(6))
def test_a_weight_without_a_partner_is_refused_by_name(missing):
    with pytest.raises(amp.StateError, match="do not pair up") as error:
        match_weights(TORCH, KERAS[:missing] + KERAS[missing + 1 :])
    assert TORCH[missing].name in str(error.value)
    with pytest.raises(amp.StateError, match="do not pair up"):
        match_weights(TORCH[:missing] + TORCH[missing + 1 :], KERAS)


def test_another_size_is_refused():
    other = Weight("dense/kernel", "dense.kernel", "io", (5, 8))
    with pytest.raises(amp.StateError) as error:
        match_weights(TORCH[:1], [other])
    assert str(error.value) == (
        "The weights of the checkpoint and of the model do not pair up. Without a partner in the "
        "model: 0.weight (dense.kernel {'i': 4, 'o': 8}); in the checkpoint: dense/kernel "
        "(dense.kernel {'i': 5, 'o': 8}).\n"
        "Hint: amp.load_weights(path, model, mapping={'dense/kernel': '0.weight'})"
    )


@pytest.mark.parametrize(
    "mapping, text",
    [
        (
            {"dense/kernal": "0.weight"},
            "mapping: the model has no weight 'dense/kernal'.\nHint: did you mean 'dense/kernel'",
        ),
        (
            {"dense/kernel": "0.wait"},
            "mapping: the checkpoint has no weight '0.wait'.\nHint: did you mean '0.weight'",
        ),
        (
            {"dense/kernel": "2.weight"},
            "mapping says 'dense/kernel': '2.weight', but 2.weight (dense.kernel {'i': 8, 'o': 8}) is "
            "no dense/kernel (dense.kernel {'i': 4, 'o': 8}).\nHint: ",
        ),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(mapping, text):
    with pytest.raises(amp.StateError) as error:
        match_weights(TORCH, KERAS, mapping)
    assert str(error.value).startswith(text)


def test_the_report_prints_as_a_table():
    assert str(match_weights(TORCH[:2], KERAS[:2])) == (
        "weight        from      matched by  layout    shape\n"
        "dense/kernel  0.weight  order       oi -> io  (4, 8)\n"
        "dense/bias    0.bias    order       same      (8,)"
    )


# -- whole numbers that come with how a model is built

PLACES = Weight("places", "other.places", "ab", (1, 512), floating=False)


def test_whole_numbers_may_go_without_a_partner():
    other = Weight("index", "other.relative_index", "a", (49,), floating=False)
    report = match_weights([PLACES, *TORCH], [*KERAS, other])
    assert pairs(report) == IN_ORDER
    assert (report.kept, report.unused) == ((other,), (PLACES,))
    assert str(report).split("\n")[-2:] == [
        f"{'index':16}  {'':8}  kept as it was  {'':8}  (49,)",
        f"{'':16}  {'places':8}  not used        {'':8}  (1, 512)",
    ]


def test_whole_numbers_that_have_a_partner_are_taken():
    renamed = PLACES._replace(name="embeddings.places")
    for target, how in ((PLACES, "name"), (renamed, "order")):
        report = match_weights([PLACES], [target])
        assert pairs(report) == {target.name: "places"}
        assert [match.how for match in report] == [how]
        assert (report.kept, report.unused) == ((), ())


def test_whole_numbers_of_another_shape_are_no_partners():
    shorter = PLACES._replace(shape=(1, 128))
    report = match_weights([PLACES], [shorter])
    assert (list(report), report.kept, report.unused) == ([], (shorter,), (PLACES,))


@pytest.mark.parametrize(
    "weight",
    [
        PLACES._replace(floating=True),
        PLACES._replace(role="embedding.table"),
        Weight("bias", "dense.bias", "o", (8,), floating=False),
    ],
    ids=["floating", "of a known role", "a quantized weight"],
)
def test_other_weights_may_not(weight):
    for sources, targets in (([weight], []), ([], [weight])):
        with pytest.raises(amp.StateError, match="do not pair up"):
            match_weights(sources, targets)


def test_whole_numbers_do_not_stand_for_others():
    floating = PLACES._replace(floating=True)
    with pytest.raises(amp.StateError, match="do not pair up"):
        match_weights([PLACES], [floating])


def test_a_mapping_may_name_them():
    named = PLACES._replace(name="ids", role="other.ids")
    with pytest.raises(amp.StateError, match="is no ids"):
        match_weights([PLACES], [named], {"ids": "places"})
    with pytest.raises(
        amp.ArgumentTypeError, match=r"not \[\('ids', 'places'\)\]\.\nHint: mapping={"
    ):
        match_weights([PLACES], [named], [("ids", "places")])


def test_weights_that_cannot_be_written_leave_those_that_were(toy, tmp_path, monkeypatch):
    source = toy.Model()
    source.weight[:] = 3.0
    amp.train_step(lambda model: np.zeros(()), source, toy.Optimizer(source)).save(tmp_path / "a")
    model, write = toy.Model(), toy.Backend.write_weights

    def half_done(backend, model, values):
        write(backend, model, values)
        if values["weight"] == 3.0:
            raise MemoryError

    monkeypatch.setattr(toy.Backend, "write_weights", half_done)
    with pytest.raises(MemoryError):
        amp.load_weights(tmp_path / "a", model)
    assert model.weight == 0.0
