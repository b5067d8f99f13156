import paddle
import paddle.nn as nn
import paddle.nn.functional as F


def make_mask(lengths, longest):
    return paddle.arange(longest).unsqueeze(0) < lengths.unsqueeze(1)


class ConvolutionModule(nn.Layer):
    def __init__(self, channels, kernel_size=15):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.point1 = nn.Linear(channels, 2 * channels)
        self.depth = nn.Conv1D(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels)
        self.depth_norm = nn.BatchNorm1D(channels)
        self.point2 = nn.Linear(channels, channels)

    def forward(self, x):
        y = F.glu(self.point1(self.norm(x)))
        y = self.depth_norm(self.depth(y.transpose([0, 2, 1])))
        return self.point2(F.silu(y).transpose([0, 2, 1]))


class ConformerBlock(nn.Layer):
    def __init__(self, size, heads, units, dropout):
        super().__init__()
        self.norms = nn.LayerList([nn.LayerNorm(size) for _ in range(4)])
        self.feed1 = nn.Sequential(nn.Linear(size, units), nn.Silu(), nn.Linear(units, size))
        self.feed2 = nn.Sequential(nn.Linear(size, units), nn.Silu(), nn.Linear(units, size))
        self.attention = nn.MultiHeadAttention(size, heads, dropout)
        self.convolution = ConvolutionModule(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = x + 0.5 * self.dropout(self.feed1(self.norms[0](x)))
        x = x + self.dropout(self.attention(self.norms[1](x), attn_mask=mask))
        x = x + self.dropout(self.convolution(x))
        x = x + 0.5 * self.dropout(self.feed2(self.norms[2](x)))
        return self.norms[3](x)


class ConformerModel(nn.Layer):
    def __init__(self, input_dim, vocab_size, encoder_conf, decoder_conf, ctc_weight=0.5, lsm_weight=0.0):
        super().__init__()
        size = encoder_conf.output_size
        self.ctc_weight, self.lsm_weight, self.vocab_size = ctc_weight, lsm_weight, vocab_size
        self.subsampling = nn.Conv1D(input_dim, size, 3, stride=4, padding=1)
        self.blocks = nn.LayerList([
            ConformerBlock(size, encoder_conf.attention_heads, encoder_conf.linear_units,
                           encoder_conf.dropout_rate) for _ in range(encoder_conf.num_blocks)
        ])
        self.ctc = nn.Linear(size, vocab_size)
        self.ctc_loss = nn.CTCLoss(reduction='sum')
        self.embedding = nn.Embedding(vocab_size, size)
        layer = nn.TransformerDecoderLayer(size, decoder_conf.attention_heads,
                                           decoder_conf.linear_units, decoder_conf.dropout_rate)
        self.decoder = nn.TransformerDecoder(layer, decoder_conf.num_blocks)
        self.output = nn.Linear(size, vocab_size)

    def encode(self, speech, speech_lengths):
        x = self.subsampling(speech.transpose([0, 2, 1])).transpose([0, 2, 1])
        lengths = (speech_lengths + 3) // 4
        mask = make_mask(lengths, x.shape[1]).unsqueeze([1, 2])
        for block in self.blocks:
            x = block(x, mask)
        return x, lengths

    def get_encoder_out(self, speech, speech_lengths):
        return F.softmax(self.ctc(self.encode(speech, speech_lengths)[0]), -1)

    def forward(self, speech, speech_lengths, text, text_lengths):
        encoded, lengths = self.encode(speech, speech_lengths)
        # the loss of CTC
        logits = self.ctc(encoded).transpose([1, 0, 2]).astype('float32')
        ctc_loss = self.ctc_loss(logits, text, lengths, text_lengths) / len(text)
        # the loss of attention
        shifted = F.pad(paddle.clip(text, min=0)[:, :-1].astype('int64'), [1, 0])
        decoded = self.output(self.decoder(self.embedding(shifted), encoded))
        errors = F.cross_entropy(decoded.flatten(0, 1), text.flatten().astype('int64'),
                                 ignore_index=-1, label_smoothing=self.lsm_weight)
        loss = self.ctc_weight * ctc_loss + (1 - self.ctc_weight) * errors
        return {'loss': loss, 'loss_ctc': ctc_loss, 'loss_att': errors}
