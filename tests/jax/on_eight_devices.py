"""Steps of models and batches that are sharded over a mesh; ``test_sharded.py`` runs this."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ampbridge as amp
import ampbridge_jax

pytestmark = pytest.mark.usefixtures("types_of_32_bits")
compiled = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
SPLIT = {("inner", "kernel"): P(None, "model"), ("outer", "kernel"): P("model")}


class Net(nnx.Module):
    """Layers with statistics and random numbers."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.inner = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.outer = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.relu(self.dropout(self.norm(self.inner(x)))))


def loss_fn(model, x, y):
    error = model(x).astype(jnp.float32) - y
    return jnp.mean(jnp.square(error)) + jnp.mean(error * jnp.where(y > 1e3, jnp.inf, 0.0))


def batches():
    rng = np.random.default_rng(0)
    for number in range(6):
        x = rng.normal(size=(32, 8)).astype(np.float32)
        y = x[:, :1].copy()
        if number == 3:
            y[5] = 1e4  # on the first of four shards
        yield x, y


def put(array, *spec):
    return jax.device_put(array, NamedSharding(MESH, P(*spec)))


def variables(*roots):
    found = nnx.iter_graph(roots)
    return {path[1:]: v for path, v in found if isinstance(v, nnx.Variable)}


def made(where):
    model = Net()
    if where in ("replicated", "sharded"):
        for path, variable in variables(model).items():
            spec = SPLIT.get(path[:2], P()) if where == "sharded" else P()
            variable.set_value(jax.device_put(variable.get_value(), NamedSharding(MESH, spec)))
    return model, nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)


def trained(where, policy, **options):
    model, optimizer = made(where)
    scaler = amp.GradScaler(2.0**8) if "float16" in str(policy) else None
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler, **options)
    results = []
    for x, y in batches():
        result = step(*((x, y) if where == "one device" else (put(x, "data"), put(y, "data"))))
        results.append((result.loss, result.scale, result.applied))
    return results, model, optimizer


@pytest.mark.parametrize(
    ("policy", "placed", "compiled"),
    [
        ("O0", "sharded", True),
        ("O1:float16", "replicated", True),
        ("O1:float16", "nowhere", True),
        ("O2:float16", "sharded", True),
        (amp.Policy("O2", "float16", slots="bfloat16"), "sharded", True),
        ("O0", "nowhere", False),
        ("O1:float16", "sharded", False),
    ],
)
def test_a_sharded_step_is_that_of_one_device(policy, placed, compiled):
    alone, model, _ = trained("one device", policy, compile=compiled)
    ours, spread, _ = trained(placed, policy, compile=compiled)
    tolerance = 1e-5 if policy == "O0" else 2e-3
    np.testing.assert_allclose([r[0] for r in ours], [r[0] for r in alone], rtol=tolerance)
    assert [r[1:] for r in ours] == [r[1:] for r in alone]
    assert [applied for *_, applied in ours] == [True, True, True, False, True, True]
    for path, variable in variables(spread).items():
        theirs = variables(model)[path].get_value()
        if jnp.issubdtype(theirs.dtype, jnp.floating):
            np.testing.assert_allclose(variable.get_value(), theirs, atol=10 * tolerance)


@compiled
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_what_is_sharded_stays_so(kind, compiled, monkeypatch):
    monkeypatch.setitem(globals(), "MESH", jax.make_mesh((4, 2), ("data", "model"), (kind,) * 2))
    where = "sharded" if kind == AxisType.Auto else "replicated"  # nnx's layers take no more
    with jax.set_mesh(MESH):
        model, optimizer = made(where)
        before = {k: v.get_value().sharding for k, v in variables(model, optimizer).items()}
        step = amp.train_step(loss_fn, model, optimizer, policy="O1:float16", compile=compiled)
        for x, y in batches():
            step(put(x, "data"), put(y, "data"))
            for path, variable in variables(model, optimizer).items():
                array = variable.get_value()
                if before[path].num_devices > 1:
                    assert array.sharding == before[path], path
                elif compiled:
                    assert array.sharding.is_fully_replicated, path
    momentum = optimizer.opt_state[0].trace["inner"]["kernel"].get_value()
    shards = 8 if where == "sharded" else 16
    for array in (model.inner.kernel.get_value(), momentum):
        assert {shard.data.shape for shard in array.addressable_shards} == {(8, shards)}


@pytest.mark.parametrize(
    ("placed", "accumulate"),
    [("replicated", 1), ("sharded", 1), ("sharded", 2), ("nowhere", 1)],
)
def test_nothing_is_compiled_after_the_first_step(placed, accumulate):
    made_at, taken = [], []

    def note(event, _, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            made_at.append(len(taken))

    model, optimizer = made(placed)
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:float16", accumulate=accumulate)
    spread = [(put(x, "data"), put(y, "data")) for x, y in batches()] * 2
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for batch in spread:
            taken.append(step(*batch))
    finally:
        jax.monitoring.clear_event_listeners()
    assert set(made_at) == set(range(accumulate))


def test_the_host_reads_nothing_until_it_is_asked(monkeypatch):
    model, optimizer = made("sharded")
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:float16")
    spread = [(put(x, "data"), put(y, "data")) for x, y in batches()]

    def read(*_):
        raise AssertionError("the host has read an array")

    for name in ("__array__", "__float__", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(type(spread[0][0]), name, read)
    results = [step(*batch) for batch in spread]
    with pytest.raises(AssertionError, match="has read"):
        float(results[-1].loss)


def test_a_checkpoint_is_loaded_to_where_the_model_is(tmp_path):
    model, optimizer = made("sharded")
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:float16")
    everything = [(put(x, "data"), put(y, "data")) for x, y in batches()]
    step(*everything[0])
    step.save(tmp_path / "saved")
    before = {k: v.get_value().sharding for k, v in variables(model, optimizer).items()}
    losses = [step(*batch).loss for batch in everything[1:]]
    other, theirs = made("sharded")
    again = amp.train_step(loss_fn, other, theirs, policy="O1:float16")
    again(*everything[0])
    again.load(tmp_path / "saved")
    for path, variable in variables(other, theirs).items():
        if before[path].spec:
            assert variable.get_value().sharding == before[path], path
    assert [again(*batch).loss for batch in everything[1:]] == losses


def test_what_is_put_on_one_device_is_not_moved():
    model, optimizer = made("replicated")
    kernel = model.inner.kernel
    kernel.set_value(jax.device_put(kernel.get_value(), jax.devices()[1]))
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    with pytest.raises(ValueError, match="incompatible devices"):
        step(*(put(array, "data") for array in next(batches())))


def test_a_pure_step_is_sharded_as_its_state():
    model, optimizer = made("sharded")
    step = amp.train_step(
        loss_fn, model, optimizer, policy="O1:float16", scaler=amp.GradScaler(2.0**8)
    )
    function, state = ampbridge_jax.pure(step)
    before = {k: v.get_value().sharding for k, v in variables(model).items()}
    assert {s.spec for s in before.values()} <= {x.sharding.spec for x in state.variables if x.ndim}
    run = jax.jit(function, donate_argnums=0)
    expected = trained("sharded", "O1:float16")[0]
    for (x, y), (loss, scale, applied) in zip(batches(), expected, strict=True):
        state, result = run(state, put(x, "data"), put(y, "data"))
        np.testing.assert_allclose(result.loss, loss, rtol=1e-5)
        assert (float(result.scale), bool(result.applied)) == (scale, applied)
    ampbridge_jax.take(step, state)
    assert {k: v.get_value().sharding for k, v in variables(model).items()} == before
    assert step(put(x, "data"), put(y, "data")).applied


def squares(x, w):
    """The mean square of what every device computes of its part of the batch."""
    return jax.lax.pmean(jnp.mean(jnp.square(x @ w)), "data")


@pytest.mark.parametrize(
    ("compiled", "check_vma", "inside_of_jit"),
    [(True, False, False), (True, True, False), (True, True, True), (False, True, False)],
)
def test_a_loss_has_a_shard_map(compiled, check_vma, inside_of_jit):
    model = nnx.Linear(8, 4, use_bias=False, rngs=nnx.Rngs(0))
    seen = []

    def part(x, w):
        product = x @ w
        seen.append(product.dtype)
        return jax.lax.pmean(jnp.mean(jnp.square(product.astype(jnp.float32))), "data")

    specs = {"in_specs": (P("data"), P()), "out_specs": P(), "check_vma": check_vma}
    mapped = jax.shard_map(part, mesh=MESH, **specs)
    run = jax.jit(mapped) if inside_of_jit else mapped

    def mapped_loss(model, x):
        return run(x, model.kernel[...])

    def plain_loss(model, x):
        return jnp.mean(jnp.square(model(x).astype(jnp.float32)))

    results = {}
    for loss in (mapped_loss, plain_loss):
        model = nnx.Linear(8, 4, use_bias=False, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        step = amp.train_step(loss, model, optimizer, policy="O1:float16", compile=compiled)
        losses = [step(put(x, "data")).loss for x, _ in batches()]
        results[loss] = losses, np.asarray(model.kernel[...])
    for ours, theirs in zip(*results.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-3, atol=1e-3)
    if not inside_of_jit:
        assert jnp.float16 in seen
    assert results[mapped_loss][0][-1] < results[mapped_loss][0][0]


def test_gradients_of_many_devices_are_added_in_float32():
    weight = jnp.ones((8, 4))

    def loss(w):
        mapped = jax.shard_map(squares, mesh=MESH, in_specs=(P("data"), P()), out_specs=P())
        with amp.autocast("O1:bfloat16", "jax"):
            return mapped(jnp.ones((32, 8)), w)

    def sums(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name.startswith("psum") and eqn.invars[0].aval.shape:
                yield eqn.invars[0].aval.dtype
            for inner in jax.tree.leaves(dict(eqn.params), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from sums(inner)

    assert set(sums(jax.make_jaxpr(jax.grad(loss))(weight).jaxpr)) == {jnp.dtype("float32")}


def test_a_jit_of_the_users_own_keeps_its_shardings():
    across = NamedSharding(MESH, P(None, "model"))
    doubled = jax.jit(
        lambda x: 2 * x, in_shardings=NamedSharding(MESH, P("data")), out_shardings=across
    )
    with amp.autocast("O1:bfloat16", "jax"):
        result = doubled(put(np.ones((32, 8), np.float32), "data"))
        assert result.sharding == across
        constrained = jax.lax.with_sharding_constraint(result, NamedSharding(MESH, P("data")))
        assert constrained.sharding.spec == P("data")
