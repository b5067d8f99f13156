"""Models of transformers with a low-rank adapter of peft: most of their weights are frozen."""

from __future__ import annotations

from typing import Any

import peft
from transformers_models import SPECIMENS as WITHOUT
from zoo import Specimen


def adapted(name: str, kind: str, *targets: str) -> Specimen:
    whole = next(each for each in WITHOUT if each.name == name)

    def build() -> Any:
        config = peft.LoraConfig(task_type=kind, r=4, target_modules=list(targets))
        return peft.get_peft_model(whole.build(), config).train()

    return Specimen(f"lora-{name}", build, whole.batch, whole.loss)


SPECIMENS = [
    adapted("llama", "CAUSAL_LM", "q_proj", "v_proj"),
    adapted("bert", "SEQ_CLS", "query", "value"),
]
