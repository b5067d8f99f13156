"""The text of modules for torch; ``torch.py`` says what goes where."""

HEADER = '''\
"""Mixed precision for PyTorch, which needs nothing else.

    import amp_torch as amp  # this file
    $usage

A result has loss, scale, applied and overflowed; $saved
"""

$imports

# Of this recipe; the rest of it is numbers:
$recipe_comment

$constants
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
'''

DEVICE = """\
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""

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
    return torch.optim.SGD(model.parameters(), learning_rate)


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

PRECISION = '''\
class Precision(NamedTuple):
    """What a model computes in."""

    dtype: torch.dtype
    """The low precision of torch.autocast; float32 is none."""
    $functions
    $low_weights
    $master_weights
    $kept
    $output_dtype
    $scales_loss


$precisions
'''

FUNCTION_FIELDS = '''\
low_functions: Sequence[str] = ()
float32_functions: Sequence[str] = ()
widest_functions: Sequence[str] = ()
"""What torch.autocast runs otherwise; the last in the widest precision that arrives."""
'''

LOW_WEIGHTS_FIELD = '''\
low_weights: bool = False
"""Whether weights and inputs are in low precision; the model and the optimizer hold float32."""
'''

MASTER_WEIGHTS_FIELD = '''\
master_weights: bool = True
"""Whether the float32 weights hold more than low precision can: updates that are small."""
'''

OUTPUT_DTYPE_FIELD = '''\
output_dtype: torch.dtype = torch.float32
"""Of what the model returns."""
'''

SCALES_LOSS_FIELD = '''\
scales_loss: bool = False
"""Steps in other precisions leave the loss scale as it is."""
'''

OP_LISTS = '''\
class OpLists(TorchFunctionMode):
    """Casts for the functions that $lists, and leaves all others to torch.autocast.

    As there, in-place functions and those that are told a dtype are left alone.
    """

    $dtypes

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, values = function.__name__, [*args, *kwargs.values()]
        told = any(isinstance(value, torch.dtype) for value in values) or "out" in kwargs
        if name not in self.dtypes or told or not torch.is_autocast_enabled(DEVICE):
            return function(*args, **kwargs)
        dtype = self.dtypes[name] or widest(values)
        with torch.autocast(DEVICE, enabled=False):
            if name in ("batch_norm", "instance_norm"):  # their statistics stay float32
                return function(*cast(args[:1], dtype), *args[1:], **kwargs)
            return function(*cast(args, dtype), **cast(kwargs, dtype))


def widest(values):
    """The one dtype of these tensors, or else float32."""
    tensors = [each for value in values for each in (value if is_list(value) else [value])]
    dtypes = {tensor.dtype for tensor in tensors if is_castable(tensor)}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32
'''

SCHEDULED_DTYPES = """\
def __init__(self, precision):
    super().__init__()
    self.dtypes = {
        **dict.fromkeys(precision.low_functions, precision.dtype),
        **dict.fromkeys(precision.float32_functions, torch.float32),
        **dict.fromkeys(precision.widest_functions),
    }
"""

KEEP = '''\
class InFloat32:
    """``function``, computed in float32 whatever is around it."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        with torch.autocast(DEVICE, enabled=False):
            return self.function(*cast(args, torch.float32), **cast(kwargs, torch.float32))


def keep(model, patterns):
    """Let the layers that ``patterns`` name run in float32, and no others."""
    for layer in model.modules():
        if isinstance(vars(layer).get("forward"), InFloat32):
            del layer.forward
    for layer in set(kept_layers(model, patterns)):
        layer.forward = InFloat32(layer.forward)
'''

LOW_WEIGHTS = '''\
NORMALIZATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def weights_to_cast(model$parameter):
    """The weights and buffers that are computed with in low precision, by name.

    Those of normalizations$and_kept are not.
    """
    $early
    layers = [layer for layer in model.modules() if isinstance(layer, NORMALIZATIONS)]
    $kept
    wide = {id(weight) for layer in layers for weight in (*layer.parameters(), *layer.buffers())}
    return {
        name: weight
        for name, weight in (*model.named_parameters(), *model.named_buffers())
        if weight.dtype is torch.float32 and id(weight) not in wide
    }
'''

CAST = '''\
def cast(values, dtype):
    """Tensors of up to 32 bits in ``dtype``, everything else as it is."""
    if is_castable(values):
        return values.to(dtype)
    if is_list(values):
        return type(values)([cast(value, dtype) for value in values])
    if isinstance(values, dict):
        return type(values)((name, cast(value, dtype)) for name, value in values.items())
    return values


def is_castable(value):
    """Whether it is a tensor of up to 32 bits."""
    low = (torch.float16, torch.bfloat16)
    return isinstance(value, torch.Tensor) and value.dtype in (*low, torch.float32)


def is_list(value):
    """Whether it is a plain list or tuple, not a shape."""
    return type(value) in (list, tuple)
'''

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
        x, y = torch.as_tensor(x, device=DEVICE), torch.as_tensor(y, device=DEVICE)
        $forward

    $predictions_method

    $round_method

    $state_methods
'''

GRAD_SCALER_CALL = """\
def __call__(self, x, y):
    loss = self.loss_of(x, y)
    scale = self.scaler.get_scale()
    self.scaler.scale($share).backward()
    $wait
    $clip
    self.scaler.step(self.optimizer)
    self.scaler.update()
    self.optimizer.zero_grad()
    $round
    finite = self.scaler.get_scale() >= scale
    $alarms
    return Result(loss.detach(), scale, applied=finite, overflowed=not finite)
"""

CALL = """\
def __call__(self, x, y):
    loss = self.loss_of(x, y)
    $present_scale
    $backward
    $wait
    gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
    $unscale
    finite = all_finite(gradients)
    $clip
    if finite:
        self.optimizer.step()
        $round
    self.optimizer.zero_grad()
    $update
    $alarms
    return Result(loss.detach(), $scale, applied=finite, overflowed=not finite)
"""

DROP_MICROBATCH_CALL = '''\
def __call__(self, x, y):
    """Adds up gradients; the optimizer runs after ``ACCUMULATE`` finite micro-batches."""
    loss = self.loss_of(x, y)
    $present_scale
    parameters = list(self.model.parameters())
    totals = [parameter.grad for parameter in parameters]
    self.optimizer.zero_grad()
    $backward
    gradients = [p.grad for p in parameters if p.grad is not None]
    $unscale
    finite = all_finite(gradients)
    $update
    for parameter, total in zip(parameters, totals):
        if parameter.grad is None or not finite:
            parameter.grad = total
        elif total is not None:
            parameter.grad += total
    self.micro_batches += int(finite)
    applied = finite and self.micro_batches % ACCUMULATE == 0
    if applied:
        $clip
        self.optimizer.step()
        self.optimizer.zero_grad()
        $round
    $alarms
    return Result(loss.detach(), $scale, applied, overflowed=not finite)
'''

UNSCALE = """\
for gradient in gradients:
    gradient /= scale
"""

CLIP = {
    "clip_norm": "nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)",
    "clip_each_norm": """\
for parameter in self.model.parameters():
    nn.utils.clip_grad_norm_(parameter, CLIP_EACH_NORM)
""",
    "clip_value": "nn.utils.clip_grad_value_(self.model.parameters(), CLIP_VALUE)",
}

SET_PRECISION_METHOD = '''\
def set_precision(self, precision):
    """From the next step on."""
    self.precision = precision
    $precise
'''

PREDICTIONS_METHOD = '''\
def predictions(self, x):
    """The model's, computed with weights and inputs in low precision."""
    $early
    low = {name: weight.to($dtype) for name, weight in self.weights.items()}
    predictions = functional_call(self.model, low, cast((x,), $dtype))
    for name, weight in self.weights.items():
        if not isinstance(weight, nn.Parameter):  # a buffer, which the model may have changed
            weight.copy_(low[name])
    return predictions
'''

ROUND_METHOD = '''\
@torch.no_grad()
def round_weights(self):
    """Give up what low precision cannot hold."""
    for weight in self.weights.values():
        weight.copy_(weight.to($dtype))
'''

ALL_FINITE = '''\
def all_finite(tensors):
    """Whether no element is inf or NaN; waits for the device."""
    return torch.stack([tensor.isfinite().all() for tensor in tensors]).all().item()
'''

SAVE_DTYPE = '''\
def save_low(module, state_dict, prefix, local_metadata):
    """A hook of the model: its state dicts hold $dtype."""
    for name, weight in state_dict.items():
        state_dict[name] = cast(weight, torch.$dtype)
'''

# -- the loop

MAIN = """\
def main():
    model = make_model().to(DEVICE)
    step = TrainStep(model, make_optimizer(model), make_loss()$more)
    for number, result in enumerate(train(step, batches())):
        print(f"{number}: loss {result.loss:.6f}, scale {result.scale:g}, applied {result.applied}")


if __name__ == "__main__":
    main()
"""
