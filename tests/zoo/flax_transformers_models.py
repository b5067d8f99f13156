"""Models in flax of Hugging Face's transformers 4, the last that has them, made tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import transformers as hf
from in_jax import Tree
from zoo import Batch, Specimen

VOCABULARY = 32
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
PICTURE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def random() -> np.random.Generator:
    return np.random.default_rng(0)


def text(*, length: int = 8) -> np.ndarray:
    return random().integers(3, VOCABULARY, (2, length))


def pictures() -> np.ndarray:
    return random().standard_normal((2, 3, 8, 8), np.float32)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def on_labels(model: Any, x: Any, y: Any) -> Any:
    return cross_entropy(model(x).logits, y)


def on_translation(model: Any, x: Any, y: Any) -> Any:
    return cross_entropy(model(x, decoder_input_ids=y).logits, y)


def on_pairs(model: Any, x: Any, pixels: Any) -> Any:
    """The loss of CLIP: each text belongs to its picture."""
    out = model(x, pixels)
    pairs = jnp.arange(len(x))
    return cross_entropy(out.logits_per_text, pairs) + cross_entropy(out.logits_per_image, pairs)


def specimen(
    called: str, kind: Any, config: Any, loss: Callable[..., Any], *batch: Any
) -> Specimen:
    def build() -> Tree:
        model = kind(config, seed=0)
        return Tree(
            model.params, lambda params, *args, **named: model(*args, params=params, **named)
        )

    def always(_: np.random.Generator) -> Batch:
        return batch

    return Specimen(called, build, always, loss)


WORDS, SHORT, LABELS = text(), text(length=6), np.array([0, 1])

# Left out: T5, which calls jnp.clip by an argument that JAX no longer has.
SPECIMENS = [
    specimen("bert", hf.FlaxBertForMaskedLM, hf.BertConfig(**TEXT), on_labels, WORDS, WORDS),
    specimen(
        "albert", hf.FlaxAlbertForSequenceClassification,
        hf.AlbertConfig(**TEXT, embedding_size=8), on_labels, WORDS, LABELS,
    ),
    specimen(
        "gpt2", hf.FlaxGPT2LMHeadModel,
        hf.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=16, **SPECIAL),
        on_labels, WORDS, WORDS,
    ),
    specimen(
        "llama", hf.FlaxLlamaForCausalLM, hf.LlamaConfig(**TEXT, **SPECIAL), on_labels, WORDS, WORDS
    ),
    specimen(
        "bart", hf.FlaxBartForConditionalGeneration,
        hf.BartConfig(
            vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
            decoder_ffn_dim=32, max_position_embeddings=16, decoder_start_token_id=2, **SPECIAL,
        ),
        on_translation, WORDS, SHORT,
    ),
    specimen(
        "vit", hf.FlaxViTForImageClassification, hf.ViTConfig(**PICTURE), on_labels, pictures(), LABELS
    ),
    specimen(
        "clip", hf.FlaxCLIPModel,
        hf.CLIPConfig(
            text_config={**TEXT, **SPECIAL}, vision_config=PICTURE, projection_dim=8,
        ),
        on_pairs, WORDS, pictures(),
    ),
]  # fmt: skip
