"""The text of modules for TensorFlow and Keras 3; ``tensorflow.py`` says what goes where."""

HEADER = '''\
"""Mixed precision for TensorFlow and Keras 3, which needs nothing else.

    import amp_tf as amp  # this file, before the model is made
    $usage

The loss scale is one of optimizer.variables: model.save and tf.train.Checkpoint save it.
"""

$imports

# Of this recipe; the rest of it is numbers:
$recipe_comment

$constants
'''

SET_PRECISION_USAGE = "amp.set_precision(model)  # once it has been built, or loaded\n"

USAGE = """\
optimizer = amp.optimizer(keras.optimizers.SGD(0.01))
model.compile(optimizer, loss)  # and fit; or in a loop of your own:
step = amp.train_step(model, optimizer, loss)
result = step(x, y)
"""

SCHEDULED_USAGE = """\
optimizer = amp.optimizer(keras.optimizers.SGD(0.01))
step = amp.train_step(model, optimizer, loss, amp.Schedule())  # which fit does not follow
result = step(x, y)
"""

CHECK_USAGE = "amp.check_skips(optimizer)  # now and then: it waits for the device\n"

# -- precision

FLOAT32_POLICY = """\
keras.config.set_dtype_policy("float32")
"""

GRAPH_OPTIMIZER = """\
# TensorFlow's graph optimizer casts op by op, by its own lists. It sees what runs in tf.function on
# a GPU; it does not see eager code, nor what is compiled by XLA.
tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
"""

DTYPE_POLICY = """\
keras.config.set_dtype_policy($policy)  # of layers made from here on
"""

PRECISION = '''\
class Precision(NamedTuple):
    """What a model computes in. Layers are named by class, which names those that derive from it."""

    dtype_policy: str
    """Of every layer but the following."""
    low_layers: Sequence[str] = ()
    """Those of Keras without weights that do not take the precision in which values arrive."""
    float32_layers: Sequence[str] = ()
    float32_functions: Sequence[str] = ()
    """Of keras.activations and keras.ops."""
    kept: Sequence[str] = ()
    """Layers held in float32 with all below them: patterns of their names, or class names."""
    follow: bool = False
    """Whether layers without weights take the precision in which values arrive."""
    scales_loss: bool = False
    """Steps in other precisions leave the loss scale as it is."""


$precisions
'''

SET_PRECISION = '''\
def set_precision(model$parameter):
    """Give every layer of ``model``, which has been built, its precision."""
    if not model.built:
        raise ValueError("build the model first, with keras.Input or a call: layers go by weights")
    $set_model
    $check_kept
'''

CHECK_KEPT = """\
for pattern in $kept:
    if pattern not in found:
        raise ValueError(f"{pattern!r} names no layer of this model")
"""

SET_LAYER = '''\
def set_layer(layer$parameter, within=None$own_parameter):
    """Give it its precision, and its parts theirs. ``within``: of a layer whose parts go with it."""
    $names
    $of_keras
    $own
    $found
    $follows
    $within
    layer.dtype_policy = within or $dtype_policy
    layer.autocast = $autocast
    $activation
    $warn
    lists = [value for value in vars(layer).values() if isinstance(value, list)]
    for part in dict.fromkeys(p for each in lists for p in each if isinstance(p, keras.Layer)):
        $set_part
    $return_found
'''

NAMES = "names = {cls.__name__ for cls in type(layer).__mro__}"

OF_KERAS = 'of_keras = type(layer).__module__.startswith("keras.")'

OWN = "own = own or not of_keras  # code of yours, where x + y of two precisions is an error"

DENIED_LAYERS = "denied = names.intersection($float32_layers)"

DENIED_BUT_LOW_OUTPUT = """\
denied = names & {*$float32_layers} - (LOW_OUTPUT if own and of_keras else set())
"""

FOLLOWS = """\
follows = isinstance(layer, keras.Model) or of_keras and not layer.weights
"""

DENIED = """\
$layers
if $denied:
    within = "float32"
"""

ONE_OP = """\
$otherwise of_keras and not follows:  # one op with its parts, as attention is
    within = within or $dtype_policy
"""

ACTIVATION = """\
if getattr(vars(layer).get("activation"), "__name__", "") in $float32_functions:
    layer.activation = in_float32(layer.activation, own)
"""

CHANGING_ACTIVATION = """\
if function := vars(layer).get("activation"):
    function = getattr(function, "original", function)
    is_denied = getattr(function, "__name__", "") in $float32_functions
    layer.activation = in_float32(function, own) if is_denied else function
"""

WARN = """\
for name in called(layer, $float32_functions):
    warnings.warn(
        f"{type(layer).__name__} runs {name} in low precision, the recipe in float32; "
        f'add x = keras.ops.cast(x, "float32") before keras.ops.{name}(x), and cast back after it'
    )
"""

CALLED = '''\
def called(layer, functions):
    """Those that a model calls, a Lambda, or a method of a class of yours, unless it also casts."""
    code = {"": vars(layer).get("function")}
    for cls in reversed(type(layer).__mro__):
        code |= {} if cls.__module__.startswith("keras.") else vars(cls)
    names = [set(each.__code__.co_names) for each in code.values() if hasattr(each, "__code__")]
    ops = [type(op) for op in getattr(layer, "operations", ()) if not isinstance(op, keras.Layer)]
    names = [each for each in (*names, {op.__name__.lower() for op in ops}) if "cast" not in each]
    return [each for each in functions if {each, each.replace("_", "")} & set().union(*names)]
'''

MATCHING = '''\
def matching(layer, patterns):
    """Those that are the layer's class, or match its name or its dotted path."""
    names = (layer.name, (layer.path or "").replace("/", "."))
    matched = [each for each in patterns if any(fnmatchcase(name, each) for name in names)]
    return matched + [each for each in patterns if each == type(layer).__name__]
'''

IN_FLOAT32 = '''\
def in_float32(function, own):
    """``function``, computed in float32; it keeps its name, by which Keras saves it."""
    return wraps(function)(lambda x: tf.cast(function(float32(x)), x.dtype if own else "float32"))
'''

CHANGING_IN_FLOAT32 = '''\
def in_float32(function, own):
    """``function``, computed in float32; it keeps its name, by which Keras saves it."""
    dtype = None if own else tf.float32
    computed = wraps(function)(lambda x: tf.cast(function(float32(x)), dtype or x.dtype))
    computed.original = function
    return computed
'''

FLOAT32 = '''\
def float32(x):
    """``x``, in float32 if it is in low precision."""
    return tf.cast(x, "float32") if x.dtype in (tf.float16, tf.bfloat16) else x
'''

OUTPUT = '''\
def output(x):
    """``x``, in $dtype if it is a float of up to 32 bits."""
    return tf.cast(x, "$dtype") if x.dtype in (tf.float16, tf.bfloat16, tf.float32) else x
'''

# -- the optimizer

CLIP = {
    "clip_norm": "inner.global_clipnorm = CLIP_NORM",
    "clip_each_norm": "inner.clipnorm = CLIP_EACH_NORM",
    "clip_value": "inner.clipvalue = CLIP_VALUE",
}

REFUSE_ACCUMULATION = """\
if inner.gradient_accumulation_steps:
    raise ValueError("AmpOptimizer accumulates: leave out gradient_accumulation_steps.")"""

KERAS_OPTIMIZER = '''\
def optimizer(inner):
    """``inner``, a Keras optimizer, under Keras' own loss scaling."""
    # By its name, or as it is; the loss is scaled here alone.
    inner = keras.optimizers.get(getattr(inner, "inner_optimizer", inner))
    $settings
    return keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=INIT_SCALE, dynamic_growth_steps=GROWTH_INTERVAL
    )
'''

OPTIMIZER = '''\
def optimizer(inner):
    """``inner``, a Keras optimizer, by the recipe."""
    # By its name, or as it is; the loss is scaled here alone.
    inner = keras.optimizers.get(getattr(inner, "inner_optimizer", inner))
    $settings
    return AmpOptimizer(inner, initial_scale=$initial_scale)


@keras.saving.register_keras_serializable(__name__)
class AmpOptimizer(keras.optimizers.LossScaleOptimizer):
    """$rule"""

    $scales_loss

    def build(self, variables):
        super().build(variables)
        $build

    $scale_loss

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        $apply

    $finish
'''

STEP = """\
finite = self.check_finite(grads)
$unscale
$apply
self.skips.assign_add(keras.ops.where(finite, 0, 1))
$count
$update
"""

UNSCALE = "grads = [g if g is None else keras.ops.divide(g, $scale) for g in grads]"

COUNT = "self.skipped.assign(keras.ops.where(finite, 0, self.skipped + 1))"

SCALE_LOSS = """\
def scale_loss(self, loss):
    return super().scale_loss(loss / ACCUMULATE)
"""

SCHEDULED_SCALE_LOSS = '''\
def scale_loss(self, loss):
    return super().scale_loss($share) if self.scales_loss else $share

def scale(self):
    """What the loss is multiplied by in this precision."""
    return tf.identity(self.dynamic_scale) if self.scales_loss else tf.constant(1.0)
'''

BUILD_TOTALS = """\
self.micro_batches = self.add_variable((), "zeros", "int32", name="micro_batches")
self.totals = [self.add_variable(v.shape, "zeros", "float32") for v in variables]
"""

ADD_UP = """\
for total, grad in zip(self.totals, grads):
    if grad is not None:
        total.assign_add(tf.convert_to_tensor(grad))
self.micro_batches.assign_add(1)
last = tf.equal(self.micro_batches % ACCUMULATE, 0)
tf.cond(last, lambda: self.finish(trainable_variables), lambda: None)
"""

FINISH = '''\
def finish(self, variables):
    """The step of all micro-batches; an overflow in one drops it."""
    grads = [tf.identity(total) for total in self.totals]
    $step
    for total in self.totals:
        total.assign(tf.zeros_like(total))
'''

UPDATE = """\
$counting
$growing
$falling
scale = keras.ops.where(grows, larger, self.dynamic_scale)
$assigning
"""

CHECK_SKIPS = '''\
def check_skips(optimizer):
    """Warn or raise if nothing is being trained. It waits for the device: call it now and then."""
    $checks
'''

RAISE = """\
if int(optimizer.skipped) >= $steps:
    raise RuntimeError("at least $steps steps in a row were skipped")
"""

WARN_OF_SKIPS = """\
if int(optimizer.skipped) >= $steps:
    warnings.warn("at least $steps steps in a row were skipped: nothing is being trained")
"""

# -- the step

TRAIN_STEP = '''\
Result = namedtuple("Result", "loss scale applied overflowed")  # of tensors: looking at one waits


def train_step(model, optimizer, loss_fn$parameter):
    """``step(x, y)``, which trains by one $batch, for a loop of your own."""
    if not optimizer.built:
        optimizer.build(model.trainable_variables)

    @tf.function
    def $name(x, y$traced_parameter):
        scale, steps = $scale, tf.identity(optimizer.iterations)
        $before
        with tf.GradientTape() as tape:
            predictions = tf.nest.map_structure($output, model(x, training=True))
            loss = tf.add_n([float32(each) for each in (loss_fn(y, predictions), *model.losses)])
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return Result(loss, scale, optimizer.iterations > steps, $overflowed)

    $scheduled

    return step
'''

SCHEDULED_STEP = """\
in_effect = None

def step(x, y):
    nonlocal in_effect
    precision = schedule.precision
    if precision is not in_effect:
        set_precision(model, precision)
        in_effect, optimizer.scales_loss = precision, precision.scales_loss
    result = traced(x, y, precision)
    $after_step
    return result

"""

# -- with ampbridge, under fit

COMPILE = '''\
def compile_model(model, optimizer, loss, **arguments):
    """``model.compile`` by the recipe, for Keras' fit.$and_how"""
    $decorate
    $settings
    scaler = $scaler
    optimizer = ampbridge_tensorflow.LossScaleOptimizer(optimizer, scaler)
    model.compile(optimizer, loss, **arguments)
'''

WITH_CALLBACK = """\


    It needs a callback: callbacks=[ampbridge_tensorflow.PolicySchedule(RECIPE.schedule)].
    """

# -- a demo

TRAINED = '''\
# -- A demo


def make_model():
    return keras.Sequential(
        [
            keras.Input((32,)),
            $layers
        ]
    )


def make_optimizer(learning_rate=0.01):
    return keras.optimizers.SGD(learning_rate)


def make_loss():
    return keras.losses.MeanSquaredError()


def batches(count=100, size=16):
    """NumPy arrays or tensors; $batch_note."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((size, 32), dtype=np.float32)
        yield x, x[:, :8] - x[:, 8:16]
'''

MAIN = '''\
def train(model, optimizer, batches):
    """Run all batches; yields each step's result."""
    step = train_step(model, optimizer, make_loss()$schedule)
    for x, y in batches:
        yield step(x, y)
        $check


def main():
    model = make_model()
    $set_precision
    results = train(model, optimizer(make_optimizer()), batches())
    for number, result in enumerate(results):
        print(f"{number}: loss {result.loss:.6f}, scale {result.scale:g}, applied {result.applied}")


if __name__ == "__main__":
    main()
'''
