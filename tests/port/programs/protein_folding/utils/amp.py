"""The op lists of a training in bfloat16."""


def get_custom_amp_list():
    """What to run in float32, and what in bfloat16, beyond Paddle's own lists."""
    black_list = {"reduce_sum"}
    white_list = {
        "concat",
        "dropout_nd",
        "einsum",
        "elementwise_add",
        "elementwise_div",
        "elementwise_mul",
        "elementwise_sub",
        "fill_any_like",
        "fill_constant",
        "fused_gate_attention",
        "fused_gemm_epilogue",
        "gather",
        "gaussian_random",
        "layer_norm",
        "log_softmax",
        "matmul_v2",
        "p_norm",
        "py_layer",
        "relu",
        "scale",
        "sigmoid",
        "slice",
        "softmax",
        "softplus",
        "split",
        "split_with_num",
        "sqrt",
        "square",
        "stack",
        "sum",
        "transpose2",
        "unsqueeze2",
        "unstack",
        "where",
    }
    return black_list, white_list
