"""Recipes as modules for torch, which has autocast by lists of its own, a scaler, and ways to clip.

What else a recipe may have is written with ampbridge: other lists, low weights, layers kept in float32,
other rules of a loss scale, micro-batches that are dropped alone, schedules.
"""

from __future__ import annotations

from collections.abc import Collection

from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Loss, Target, ampbridge, loop
from ampbridge_port.writers.code import ALWAYS, Comments, commented, constants, fill, program

HEADER = '''\
"""Mixed precision for PyTorch.

    scaler = amp_torch.scaler()
    for loss in amp_torch.train(model, optimizer, scaler, loss_fn, batches): ...

Save scaler.state_dict(), too.
"""

$imports

$constants
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
'''

SCALER = """\
return torch.amp.GradScaler(
    DEVICE,
    init_scale=INIT_SCALE,
    growth_factor=GROWTH_FACTOR,
    backoff_factor=BACKOFF_FACTOR,
    growth_interval=GROWTH_INTERVAL,
)
"""

NO_SCALER = "return torch.amp.GradScaler(DEVICE, enabled=False)"

STEP = """\
$clip
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
"""

UNSCALE = "scaler.unscale_(optimizer)\n"

CLIP = {
    "clip_norm": "torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)",
    "clip_each_norm": """\
for parameter in model.parameters():
    torch.nn.utils.clip_grad_norm_(parameter, CLIP_EACH_NORM)
""",
    "clip_value": "torch.nn.utils.clip_grad_value_(model.parameters(), CLIP_VALUE)",
}

MODEL = """\
layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
model = torch.nn.Sequential(*layers)$device
mse_loss, optimizer = torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.01)
"""


def lacks(recipe: Recipe) -> tuple[str, ...]:
    """What torch has no function for: its autocast leaves weights in float32, and takes no lists."""
    found = ["policy.level"] if recipe.policy.level == "O2" and recipe.schedule is None else []
    found += loop.lacking(recipe, "torch", takes_lists=False)
    found += ["decorate.save_dtype"] if recipe.save_dtype is not None else []
    return (*found, *["decorate.master_grad"] * recipe.master_grad)


def _native(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    policy, region = recipe.policy, "with torch.autocast(DEVICE, dtype=DTYPE):"
    dtype = commented(f"DTYPE = torch.{policy.dtype}", comments.get("policy.dtype", ""))
    if policy.level == "O0":
        dtype, region = "", "with torch.autocast(DEVICE, enabled=False):"
    clip = UNSCALE + CLIP[recipe.clipping.name] if recipe.clipping else ""
    head = fill(
        HEADER,
        imports="import numpy as np\nimport torch" if with_demo else "import torch",
        constants=dtype + constants(recipe, comments, ALWAYS if recipe.scaler else ()),
    )
    made = fill(MODEL, device=".to(DEVICE)")
    return program(
        head,
        fill(loop.SCALER, made=SCALER if recipe.scaler else NO_SCALER),
        loop.train_section(recipe, region, fill(STEP, clip=clip)),
        loop.demo(made, "torch.tensor(each, device=DEVICE)") if with_demo else "",
    )


def _losses(recipe: Recipe, used: Collection[str] | None) -> tuple[Loss, ...]:
    if recipe.policy.level == "O0" or recipe.policy.lists == "native":
        return ()
    msg = "on CPUs torch.autocast has other lists; on CUDA it runs as in the recipe"
    return (Loss("policy.lists", "changes", msg),)


def _with_ampbridge(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    made = fill(MODEL, device='.to("cuda" if torch.cuda.is_available() else "cpu")')
    demo = ampbridge.demo(recipe, made, "mse_loss(model(x), y)") if with_demo else ""
    imports = ["import torch"] if with_demo else []
    return ampbridge.module(recipe, comments, "PyTorch", demo, imports=imports, lacks=lacks(recipe))


TARGET = Target(_native, _with_ampbridge, lacks, _losses)
