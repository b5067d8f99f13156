class LMConfig:
    def __init__(
        self,
        dim=512,
        n_layers=8,
        n_heads=8,
        n_kv_heads=2,
        vocab_size=6400,
        norm_eps=1e-5,
        max_seq_len=8192,
        rope_theta=1e6,
        dropout=0.0,
    ):
        self.dim = dim
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.vocab_size = vocab_size
        self.norm_eps = norm_eps
        self.max_seq_len = max_seq_len
        self.rope_theta = rope_theta
        self.dropout = dropout
