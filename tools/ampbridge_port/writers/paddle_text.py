"""The text of modules for Paddle; ``paddle.py`` says what goes where."""

HEADER = '''\
"""Mixed precision for PaddlePaddle, which needs nothing else.

    import amp_paddle as amp  # this file
    $usage

A result has loss, scale, applied and overflowed; $saved
"""

$imports

# Of this recipe; the rest of it is numbers:
$recipe_comment

$constants
'''

# -- what is trained

TRAINED = '''\
# -- A demo


def make_model():
    $model nn.Sequential(
        nn.Linear(32, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 8),
    )
    $kept_layers


def make_optimizer(model, learning_rate=0.01):
    return paddle.optimizer.SGD(learning_rate, parameters=model.parameters()$clip)


def make_loss():
    return nn.MSELoss()


def batches(count=100, size=16):
    """NumPy arrays or tensors; $batch_note."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((size, 32), dtype=np.float32)
        yield x, x[:, :8] - x[:, 8:16]
'''

# -- precision

PRECISION = """\
# Paddle has mixed precision on GPUs and other accelerators. On CPUs it switches it off, with warnings,
# and everything below runs in float32.

$lists
$output_dtype
"""

OUTPUT_DTYPE = 'OUTPUT_DTYPE = "float32" if paddle.get_device() == "cpu" else "$dtype"'

SCHEDULED_PRECISION = '''\
class Precision(NamedTuple):
    """What a step computes in."""

    auto_cast: Mapping[str, Any]
    """The arguments of paddle.amp.auto_cast."""
    $kept
    $output_dtype
    scales_loss: bool = False
    """Steps in other precisions leave the loss scale as it is."""


$precisions
'''

OUTPUT_DTYPE_FIELD = '''\
output_dtype: str = "float32"
"""Of what the model returns, where it is not on a CPU."""
'''

KEEP = '''\
class InFloat32:
    """``function``, computed in float32 whatever is around it."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        with paddle.amp.auto_cast(enable=False):
            return self.function(*cast(args, "float32"), **cast(kwargs, "float32"))


def keep(model, patterns):
    """Let the layers that ``patterns`` name run in float32, and no others; returns them."""
    for layer in model.sublayers(include_self=True):
        if isinstance(vars(layer).get("forward"), InFloat32):
            del layer.forward
    kept = list(dict.fromkeys(kept_layers(model, patterns)))
    for layer in kept:
        layer.forward = InFloat32(layer.forward)
    return kept
'''

CAST = '''\
def cast(values, dtype):
    """Tensors of up to 32 bits in ``dtype``, everything else as it is."""
    if isinstance(values, paddle.Tensor):
        castable = (paddle.float16, paddle.bfloat16, paddle.float32)
        return values.astype(dtype) if values.dtype in castable else values
    if type(values) in (list, tuple):
        return type(values)([cast(value, dtype) for value in values])
    if isinstance(values, dict):
        return type(values)((name, cast(value, dtype)) for name, value in values.items())
    return values
'''

# -- loss scaling

NATIVE_SCALING = """\
# When the scale falls, Paddle 3.3 prints float(scale) of a tensor of shape [1], which is an error from
# NumPy 2.4 on. This line is for that print alone.
grad_scaler.float = lambda value: float(np.asarray(value).item())
"""

# -- the step

STEP = '''\
class TrainStep:
    """``result = step(x, y)`` trains ``model`` by one $batch."""

    def __init__(self, model, optimizer, loss$more_parameters):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        $state
        $set_precision

    $set_precision_method

    $call

    def loss_of(self, x, y):
        """The loss in float32."""
        x, y = paddle.to_tensor(x), paddle.to_tensor(y)
        $forward

    $scale_method

    $state_methods
'''

GRAD_SCALER_CALL = """\
def __call__(self, x, y):
    loss = self.loss_of(x, y)
    scale = self.scale()
    self.scaler.scale($share).backward()
    $wait
    self.scaler.unscale_(self.optimizer)
    finite = all_finite([p.grad for p in self.model.parameters() if p.grad is not None])
    if finite or self.scaler.is_enable():  # which skips a step by itself
        self.scaler.step(self.optimizer)
    self.scaler.update()
    self.optimizer.clear_grad(set_to_zero=False)
    $alarms
    return Result(loss.detach(), scale, applied=finite, overflowed=not finite)
"""

SCALE_METHOD = '''\
def scale(self):
    """What the loss is multiplied by: nothing, where Paddle has switched it off."""
    return self.scaler.state_dict()["scale"].item() if self.scaler.is_enable() else 1.0
'''

CALL = """\
def __call__(self, x, y):
    loss = self.loss_of(x, y)
    $present_scale
    $backward
    $wait
    parameters = [p for p in self.model.parameters() if p.grad is not None]
    $unscale
    finite = all_finite([p.grad for p in parameters])
    if finite:
        self.optimizer.step()
    self.optimizer.clear_grad(set_to_zero=False)
    $update
    $alarms
    return Result(loss.detach(), $scale, applied=finite, overflowed=not finite)
"""

DROP_MICROBATCH_CALL = '''\
def __call__(self, x, y):
    """Adds up gradients; the optimizer runs after ``ACCUMULATE`` finite micro-batches."""
    loss = self.loss_of(x, y)
    $present_scale
    totals = [
        (p, p.grad.detach().clone()) for p in self.model.parameters() if p.grad is not None
    ]
    self.optimizer.clear_grad(set_to_zero=False)  # which frees what they held
    $backward
    parameters = [p for p in self.model.parameters() if p.grad is not None]
    $unscale
    finite = all_finite([p.grad for p in parameters])
    $update
    if not finite:
        self.optimizer.clear_grad(set_to_zero=False)
    add_gradients(totals)
    self.micro_batches += int(finite)
    applied = finite and self.micro_batches % ACCUMULATE == 0
    if applied:
        self.optimizer.step()
        self.optimizer.clear_grad(set_to_zero=False)
    $alarms
    return Result(loss.detach(), $scale, applied, overflowed=not finite)
'''

SET_PRECISION_METHOD = '''\
def set_precision(self, precision):
    """From the next step on."""
    self.precision = precision
    $keep
'''

UNSCALE = '''\
@paddle.no_grad()
def unscale(parameters, scale):
    """Divide gradients by the scale."""
    for parameter in parameters:
        parameter.grad = parameter.grad / scale
'''

ADD_GRADIENTS = '''\
@paddle.no_grad()
def add_gradients(totals):
    """Add to the gradients of each of these parameters."""
    for parameter, total in totals:
        parameter.grad = total if parameter.grad is None else parameter.grad + total
'''

ALL_FINITE = '''\
@paddle.no_grad()
def all_finite(tensors):
    """Whether no element is inf or NaN; waits for the device."""
    return paddle.stack([tensor.isfinite().all() for tensor in tensors]).all().item()
'''

# -- the loop

GRAD_CLIP = '''\
def grad_clip():
    """For your optimizer's argument of this name."""
    return $made
'''

CLIP = {
    "clip_norm": "nn.ClipGradByGlobalNorm(CLIP_NORM)",
    "clip_each_norm": "nn.ClipGradByNorm(CLIP_EACH_NORM)",
    "clip_value": "nn.ClipGradByValue(CLIP_VALUE)",
}

CLIP_USAGE = "optimizer = paddle.optimizer.SGD(0.01, parameters=..., grad_clip=amp.grad_clip())\n"

DECORATE_USAGE = "model, optimizer = amp.decorate(model, optimizer)\n"

DECORATE = '''\
def decorate(model, optimizer):
    """Both as the recipe has them."""
    $keep
    $decorate
    return model, optimizer
'''

MAIN = """\
def main():
    model = make_model()
    optimizer = make_optimizer(model)
    $decorate
    step = TrainStep(model, optimizer, make_loss()$more)
    for number, result in enumerate(train(step, batches())):
        loss, scale = float(result.loss), result.scale
        print(f"{number}: loss {loss:.6f}, scale {scale:g}, applied {result.applied}")


if __name__ == "__main__":
    main()
"""
