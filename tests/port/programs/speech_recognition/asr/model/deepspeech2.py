import paddle.nn as nn
import paddle.nn.functional as F


class DeepSpeech2Model(nn.Layer):
    def __init__(self, input_dim, vocab_size, encoder_conf):
        super().__init__()
        size = encoder_conf.output_size
        self.conv = nn.Conv1D(input_dim, size, 11, stride=2, padding=5)
        self.rnn = nn.GRU(size, size, encoder_conf.num_blocks, direction='bidirect')
        self.output = nn.Linear(2 * size, vocab_size)
        self.ctc_loss = nn.CTCLoss(reduction='sum')

    def encode(self, speech, speech_lengths):
        x = F.relu(self.conv(speech.transpose([0, 2, 1]))).transpose([0, 2, 1])
        lengths = (speech_lengths + 1) // 2
        return self.output(self.rnn(x, sequence_length=lengths)[0]), lengths

    def get_encoder_out(self, speech, speech_lengths):
        return F.softmax(self.encode(speech, speech_lengths)[0], -1)

    def forward(self, speech, speech_lengths, text, text_lengths):
        logits, lengths = self.encode(speech, speech_lengths)
        logits = logits.transpose([1, 0, 2]).astype('float32')
        return {'loss': self.ctc_loss(logits, text, lengths, text_lengths) / len(text)}
