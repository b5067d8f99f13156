"""Finding a backend without importing a framework."""

import subprocess
import sys
import textwrap

import pytest

import ampbridge as amp
from ampbridge.adapters import registry

FRAMEWORKS = ("torch", "tensorflow", "keras", "paddle", "autograd", "jax", "flax", "optax")


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_after(code):
    """The frameworks that ``code`` brings into a fresh interpreter."""
    listing = f"import sys; print(*[f for f in {FRAMEWORKS!r} if f in sys.modules])"
    return set(run(f"{code}\n{listing}").split())


def test_importing_ampbridge_loads_no_framework():
    assert loaded_after("import ampbridge") == set()


def test_that_test_can_fail():
    assert loaded_after("import ampbridge, autograd") == {"autograd"}


def test_asking_for_the_status_of_backends_loads_no_framework():
    assert loaded_after("import ampbridge as amp; amp.backends()") == set()


def test_policies_and_op_names_load_no_framework():
    code = "import ampbridge as amp; amp.Policy(deny=['tf:MatMul']).native_rules('torch')"
    assert loaded_after(code) == set()


@pytest.mark.parametrize("adapter", ["numpy", "torch", "tensorflow", "paddle", "jax"])
def test_importing_an_adapter_package_loads_no_other_framework(adapter):
    loaded = loaded_after(f"import ampbridge_{adapter}")
    own = {"numpy": {"autograd"}, "jax": {"jax", "flax", "optax"}}
    assert loaded <= own.get(adapter, set())


def test_import_brings_few_modules_and_no_package_but_numpy():
    """Commands, the lens, porting and reports load when they are used."""
    code = """
        import sys, numpy
        before = set(sys.modules)
        import ampbridge
        print(*sorted(set(sys.modules) - before))
    """
    loaded = run(code).split()
    packages = {name.partition(".")[0] for name in loaded}
    assert packages <= {"ampbridge", "numpy", *sys.stdlib_module_names}
    later = ("cli", "neutral", "reports.printing", "workloads")
    assert not {f"ampbridge.{name}" for name in later}.intersection(loaded)
    assert len(loaded) <= 81


def test_backends_names_every_adapter():
    assert set(amp.backends()) >= {"numpy", "torch", "tensorflow", "paddle", "jax"}
    assert set(amp.backends().values()) <= {"loaded", "installed", "not installed"}


def test_a_backend_that_was_loaded_is_replaced_by_the_one_that_is_registered_next(toy):
    before = registry.backend("toyframework")
    amp.register_backend("toyframework", type(before))
    assert registry.backend("toyframework") is not before


def test_a_registered_backend_is_found_by_name_and_by_object(toy):
    assert amp.backend("toyframework").name == "toyframework"
    assert amp.backend(toy.Model()).name == "toyframework"
    assert amp.backends()["toyframework"] == "loaded"


def test_subclasses_belong_to_the_framework_of_their_base(toy):
    class Mine(toy.Model):
        __module__ = "myproject.toyframework.wrappers"

    assert amp.backend(Mine()).name == "toyframework"


def classes_of(*modules):
    return [type("Theirs", (), {"__module__": f"{module}.parts"}) for module in modules]


def test_an_adapter_names_the_other_modules_of_its_framework(toy):
    """In each call alone: what is registered without them has none."""
    model, array = classes_of("toymodels", "toyarrays")
    with pytest.raises(amp.BackendNotFoundError, match="toymodels"):
        amp.backend(model())
    amp.register_backend("toyframework", toy.Backend, modules=["toymodels", "toyarrays"])
    assert {amp.backend(cls()).name for cls in (model, array)} == {"toyframework"}
    amp.register_backend("toyframework", toy.Backend, modules=["toyarrays"])
    assert amp.backend(array()).name == "toyframework"
    with pytest.raises(amp.BackendNotFoundError, match="toymodels"):
        amp.backend(model())


def test_a_framework_that_another_one_imported_is_not_in_use(toy, monkeypatch):
    """TensorFlow imports JAX; flax and optax, whose models and optimizers it trains, it does not."""
    amp.register_backend("alongside", toy.Backend, modules=["alongside_parts", "others_models"])
    for module in ("alongside", "alongside_parts"):
        monkeypatch.setitem(sys.modules, module, sys)
    assert "alongside" not in registry.names_in_use()
    monkeypatch.setitem(sys.modules, "others_models", sys)
    assert "alongside" in registry.names_in_use()


def test_those_modules_are_no_backends_and_do_not_put_the_framework_in_use(toy, monkeypatch):
    before = amp.backends()
    amp.register_backend("toyframework", toy.Backend, modules=["toymodels"])
    monkeypatch.setitem(sys.modules, "toymodels", sys)
    monkeypatch.delitem(sys.modules, "toyframework", raising=False)
    assert amp.backends().keys() == before.keys()
    assert "toyframework" not in registry.names_in_use()


@pytest.mark.parametrize("modules", ["flax", ["flax.nnx"], [3]], ids=str)
def test_modules_that_are_none(toy, modules):
    before = amp.backends()
    with pytest.raises(amp.ArgumentTypeError) as error:
        amp.register_backend("another", toy.Backend, modules=modules)
    assert str(error.value) == (
        f"A backend is registered with the root modules of other packages, not with {modules!r}.\n"
        "Hint: amp.register_backend('jax', JaxBackend, modules=['flax', 'optax'])"
    )
    assert amp.backends() == before


def test_a_distribution_names_them_by_entry_points(tmp_path):
    """They are read: a model is of the framework before anything of it, or its adapter, is imported."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ampbridge.backends]\nframe = no_such_adapter.backend:It\n"
        "[ampbridge.modules]\nmodels = frame\noptimizers = frame\nlibrary.on.frame = frame\n"
    )
    found = run(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from ampbridge.adapters import registry
        for module in ("models", "optimizers", "frame", "no_such_adapter", "library.on.frame",
                       "other", "library", "library.on.framework"):
            base = type("Theirs", (), {{"__module__": module + ".parts"}})
            cls = type("Theirs", (base,), {{"__module__": module.partition(".")[0]}})
            print(registry.framework_of_type(cls))
        print(*{{"models", "optimizers", "frame", "no_such_adapter"}}.intersection(sys.modules))
    """)
    assert found.split() == [*5 * ["frame"], *3 * ["None"]]


def test_the_modules_of_the_frameworks_here():
    """Without importing one: of arrays in a backward pass, models and optimizers."""
    modules = ("autograd", "flax", "optax", "jaxlib", "jax")
    found = [registry.framework_of_type(cls) for cls in classes_of(*modules)]
    assert found == ["numpy", "jax", "jax", "jax", "jax"]


@pytest.mark.usefixtures("toy")
def test_the_root_module_decides_not_a_part_of_the_path():
    class NotToy:
        __module__ = "myproject.toyframework.wrappers"

    with pytest.raises(amp.BackendNotFoundError):
        amp.backend(NotToy())


def test_a_backend_is_returned_as_it_is(toy):
    backend = toy.Backend()
    assert amp.backend(backend) is backend


def test_a_tensor_that_has_a_name_is_no_backend(toy):
    tensor = toy.array(1.0)
    tensor.name = "weight"
    assert amp.backend(tensor).name == "toyframework"


class Incomplete:
    name = "toyframework"

    def autocast(self, policy):
        raise NotImplementedError


def test_what_has_some_methods_of_a_backend_is_none():
    with pytest.raises(amp.BackendNotFoundError, match="Incomplete"):
        amp.backend(Incomplete())


class Unnamed(amp.Backend):
    """Every method, but no name."""


def test_a_backend_without_a_name_is_none():
    Unnamed.__abstractmethods__ = frozenset()
    with pytest.raises(amp.BackendNotFoundError, match="Unnamed"):
        amp.backend(Unnamed())


def test_the_package_of_an_adapter_is_where_its_class_stands(toy, monkeypatch):
    """The digits of a backend that was registered by hand are looked for beside it."""
    monkeypatch.setattr(toy.Backend, "__module__", "theirpackage.adapters.toy")
    assert registry.adapter_package("toyframework") == "theirpackage"
    assert registry.adapter_package("torch") == "ampbridge_torch"


def test_a_framework_in_use_is_found_without_being_named():
    """NumPy counts only where its adapter was imported: the core itself imports numpy."""
    assert run("""
        import ampbridge as amp
        from ampbridge.adapters import registry
        try:
            registry.active_backend()
        except amp.BackendNotFoundError:
            print("none")
        import ampbridge_numpy
        print(registry.active_backend().name)
    """).split() == ["none", "numpy"]


def test_what_is_loaded_on_first_use_is_listed():
    shown = run(
        "import ampbridge as amp; print({'lens', 'port'} <= {*dir(amp)}, 'read' in dir(amp.port))"
    )
    assert shown == "True True"
