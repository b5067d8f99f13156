"""PaddleNLP's ``TrainingArguments``, and the calls of Paddle that its Trainer makes of them.

Defaults and calls are those of PaddleNLP 2.8: paddlenlp/trainer/training_args.py and
paddlenlp/trainer/trainer.py (``_wrap_amp_model``, ``autocast_smart_context_manager``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampbridge_port.dialect import Argument, Call, Draft, NotKnown
from ampbridge_port.readers import clipping, paddle, scaling
from ampbridge_port.readers.deepspeed import whole
from ampbridge_port.table import passing

TRAINING_ARGUMENTS = "paddlenlp.trainer.TrainingArguments"
SIGNATURE = (
    "output_dir", "fp16", "bf16", "fp16_opt_level", "amp_master_grad", "amp_custom_black_list",
    "amp_custom_white_list", "scale_loss", "gradient_accumulation_steps", "max_grad_norm",
)  # fmt: skip
BLACK = ("reduce_sum", "c_softmax_with_cross_entropy")
"""What the Trainer's regions deny besides the user's own list."""
WHITE_AT_O2 = ("lookup_table_v2",)
"""Its "lookup_table", too, has no effect: eager Paddle does not look up that name."""


def training_arguments(call: Call, draft: Draft) -> None:
    """``TrainingArguments(fp16=False, bf16=False, fp16_opt_level="O1", scale_loss=2**15, ...)``."""
    draft.take("step.accumulate", call, "gradient_accumulation_steps", 1, whole)
    clipping.take(draft, "clip_norm", call, "max_grad_norm", clipping.limit, 1.0)
    try:
        fp16, bf16 = call.flag("fp16", False), call.flag("bf16", False)
        level = str(call.value("fp16_opt_level", "O1")).upper()
    except NotKnown as error:
        draft.unknown["policy.level"] = draft.unknown["policy.dtype"] = error.place
        return
    if level == "O0" or not (fp16 or bf16):
        draft.set("policy.level", "O0")
        return
    dtype = "float16" if fp16 else "bfloat16"
    if fp16:
        scaler = _call(call, "paddle.amp.GradScaler", init_loss_scaling="scale_loss")
        paddle.grad_scaler(passing(scaler, init_loss_scaling=2.0**15), draft)
    else:
        scaling.never(draft)
    if level == "O2":
        decorated = _call(call, "paddle.amp.decorate", master_grad="amp_master_grad")
        paddle.decorate(passing(decorated, level=level, dtype=dtype, optimizers=True), draft)
    paddle.auto_cast(_region(call, level, dtype), draft)


def _call(call: Call, name: str, **keys: str) -> Call:
    """``name(parameter=<the argument of this name>)``, for those that were passed."""
    passed = {p: call.arguments[key] for p, key in keys.items() if key in call.arguments}
    return replace(call, name=name, arguments=passed, extra={})


def _region(call: Call, level: str, dtype: str) -> Call:
    white = WHITE_AT_O2 if level == "O2" else ()
    lists = {
        "custom_black_list": _besides(call, "amp_custom_black_list", BLACK),
        "custom_white_list": _besides(call, "amp_custom_white_list", white),
    }
    region = replace(call, name="paddle.amp.auto_cast", arguments=lists, extra={})
    return passing(region, level=level, dtype=dtype)


def _besides(call: Call, name: str, own: Sequence[str]) -> Argument:
    """The Trainer's own entries, and the user's."""
    return Argument(call.place_of(name), lambda: [*own, *(call.value(name, None) or ())])


DIALECT = replace(
    paddle.DIALECT,
    signatures={**paddle.DIALECT.signatures, TRAINING_ARGUMENTS: SIGNATURE},
    aliases={
        **paddle.DIALECT.aliases,
        "paddlenlp.trainer.training_args.TrainingArguments": TRAINING_ARGUMENTS,
    },
    handlers={**paddle.DIALECT.handlers, TRAINING_ARGUMENTS: training_arguments},
    words=(*paddle.DIALECT.words, "paddlenlp"),
)
"""Paddle's dialect with PaddleNLP's own call: its files use both."""
