import paddle

WORDS = ["<pad>", "<bos>", "<eos>", "add", "mul", "sin", "exp", "x_0", "x_1"]


class FormulaEnvironment:
    """Draws formulas as words, and points on them."""

    def __init__(self, params, points=64, length=12):
        self.params = params
        self.points = points
        self.length = length

    def batch(self):
        size = self.params.batch_size
        formula = paddle.randint(3, len(WORDS), [size, self.length])
        x = paddle.randn([size, self.points, 2])
        y = (x * formula[:, :1].astype("float32").unsqueeze(-1)).sum(axis=-1, keepdim=True)
        return paddle.concat([x, y], axis=-1), formula
