"""What is made from code about porting is what the code says."""

import importlib.util
import json
import sys
from pathlib import Path

import jsonschema
import pytest

import ampbridge as amp

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/recipe.schema.json").read_text())


def load_script():
    spec = importlib.util.spec_from_file_location("porting", ROOT / "scripts/write_porting.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documents_are_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)  # as the script does, which stays there
    monkeypatch.setattr(sys, "argv", ["write_porting.py", "--check"])
    assert load_script().main() == 0, "run `make tables` and look at what changed"


@pytest.mark.parametrize(
    "recipe",
    [
        amp.Recipe(),
        amp.Recipe("O1:bfloat16", accumulate=4, clip_norm=1.0),
        amp.Recipe(
            amp.Policy("O2", lists="paddle", allow=["add"], keep=["head.*"]),
            amp.Scaling.like("deepspeed", init_scale=1024.0, max_consecutive_skips=None),
            save_dtype="float32",
            master_grad=True,
        ),
        amp.Recipe(schedule=amp.Schedule([(0, "O0"), (10, "O1")])),
    ],
)
def test_the_published_schema_takes_recipes(recipe):
    jsonschema.validate(recipe.to_dict(), SCHEMA)


@pytest.mark.parametrize("data", [{"policy": {"levle": "O1"}}, {"scaler": {"init_scale": -1.0}}])
def test_the_published_schema_refuses_what_is_none(data):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)
