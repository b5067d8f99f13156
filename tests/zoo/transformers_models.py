"""Models of Hugging Face's transformers, made tiny: an encoder, a decoder, or both; text, pictures, sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import transformers as hf
from zoo import Batch, Specimen

VOCABULARY = 64
PIXELS = 32

# What most text models call their sizes; those that have other words are told in the table.
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
PICTURE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": PIXELS,
    "patch_size": 8,
    "num_labels": 5,
    # Theirs is 1e-12: tokens begin as zeros, whose gradient is a million times that of what comes
    # behind the norm. At O2 it is float16 and overflows at a scale of 16.
    "layer_norm_eps": 1e-5,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def words(random: np.random.Generator, *, length: int = 12) -> np.ndarray:
    return random.integers(3, VOCABULARY, (2, length))


def text(random: np.random.Generator) -> Batch:
    return (words(random),)


def labelled_text(random: np.random.Generator) -> Batch:
    return words(random), random.integers(0, 2, 2)


def translation(random: np.random.Generator) -> Batch:
    return words(random), words(random, length=7)


def labelled_pictures(random: np.random.Generator) -> Batch:
    pictures = random.standard_normal((2, 3, PIXELS, PIXELS), np.float32)
    return pictures, random.integers(0, 5, 2)


def pictures(random: np.random.Generator) -> Batch:
    return labelled_pictures(random)[:1]


def captioned(random: np.random.Generator) -> Batch:
    return words(random), *pictures(random)


def transcribed_sound(random: np.random.Generator) -> Batch:
    return random.standard_normal((2, 800), np.float32), words(random, length=3)


def transcribed_spectrum(random: np.random.Generator) -> Batch:
    return random.standard_normal((2, 8, 40), np.float32), words(random, length=5)


def series(random: np.random.Generator) -> Batch:
    return (
        random.standard_normal((2, 32, 3), np.float32),
        random.standard_normal((2, 8, 3), np.float32),
    )


def predicts_itself(model: Any, ids: Any) -> Any:
    return model(input_ids=ids, labels=ids).loss


def text_and_labels(model: Any, ids: Any, labels: Any) -> Any:
    return model(input_ids=ids, labels=labels).loss


def pictures_and_labels(model: Any, pixels: Any, labels: Any) -> Any:
    return model(pixel_values=pixels, labels=labels).loss


def reconstruction(model: Any, pixels: Any) -> Any:
    return model(pixel_values=pixels).loss


def contrast(model: Any, ids: Any, pixels: Any) -> Any:
    return model(input_ids=ids, pixel_values=pixels, return_loss=True).loss


def sound_and_text(model: Any, sound: Any, labels: Any) -> Any:
    return model(input_values=sound, labels=labels).loss


def spectrum_and_text(model: Any, spectrum: Any, labels: Any) -> Any:
    return model(input_features=spectrum, labels=labels).loss


def forecast(model: Any, past: Any, future: Any) -> Any:
    return model(past_values=past, future_values=future).loss


def made(kind: str, head: str, *parts: Mapping[str, Any], **settings: Any) -> Callable[[], Any]:
    """``hf.<kind><head>`` in training mode; of two settings of one name the later counts."""
    joined = {key: value for part in (*parts, settings) for key, value in part.items()}

    def build() -> Any:
        config = getattr(hf, f"{kind}Config")(**joined)
        return getattr(hf, kind + head)(config).train()

    return build


def decoder(name: str, kind: str, head: str = "ForCausalLM", **settings: Any) -> Specimen:
    return Specimen(name, made(kind, head, TEXT, SPECIAL, settings), text, predicts_itself)


def classifier(name: str, kind: str, **settings: Any) -> Specimen:
    build = made(kind, "ForSequenceClassification", TEXT, SPECIAL, settings)
    return Specimen(name, build, labelled_text, text_and_labels)


def filler(name: str, kind: str, **settings: Any) -> Specimen:
    """A masked language model."""
    build = made(kind, "ForMaskedLM", TEXT, SPECIAL, settings)
    return Specimen(name, build, text, predicts_itself)


def translator(
    name: str, kind: str, head: str = "ForConditionalGeneration", **settings: Any
) -> Specimen:
    build = made(kind, head, SPECIAL, settings, vocab_size=VOCABULARY)
    return Specimen(name, build, translation, text_and_labels)


def seer(name: str, kind: str, **settings: Any) -> Specimen:
    build = made(kind, "ForImageClassification", **settings)
    return Specimen(name, build, labelled_pictures, pictures_and_labels)


BART = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SOUND = {
    **{key: TEXT[key] for key in TEXT if key != "max_position_embeddings"},
    "conv_dim": (16, 16),
    "conv_kernel": (10, 4),
    "conv_stride": (5, 4),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
    "pad_token_id": 0,
}
TOWERS = {
    "text_config": {**TEXT, **SPECIAL, "projection_dim": 16},
    "vision_config": {**PICTURE, "projection_dim": 16},
}

XLNET = {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
FUNNEL = {
    "vocab_size": VOCABULARY,
    "block_sizes": [1, 1],
    "d_model": 32,
    "n_head": 4,
    "d_head": 8,
    "d_inner": 48,
}
SWIN = {
    "image_size": PIXELS,
    "patch_size": 4,
    "window_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "num_labels": 5,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
PATCHES = {"num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2]}
MOBILEVIT = {
    "image_size": PIXELS,
    "hidden_sizes": [16, 24, 32],
    "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32],
    "num_labels": 5,
}
MAE = {
    **PICTURE,
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
}
WHISPER = {
    **SPECIAL,
    **BART,
    "vocab_size": VOCABULARY,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 16,
}
PATCHTST = {
    "num_input_channels": 3,
    "context_length": 32,
    "prediction_length": 8,
    "patch_length": 8,
    "patch_stride": 8,
    "d_model": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 48,
}

# Left out: deberta, which fills its scores with float32's least number and so fails under
# torch.autocast as well (deny=["masked_fill"] cures it); deberta-v2 has it mended.
SPECIMENS = [
    Specimen(
        "xlnet",
        made("XLNet", "ForSequenceClassification", SPECIAL, XLNET),
        labelled_text,
        text_and_labels,
    ),
    Specimen(
        "funnel",
        made("Funnel", "ForSequenceClassification", FUNNEL),
        labelled_text,
        text_and_labels,
    ),
    classifier("bert", "Bert"),
    classifier("roberta", "Roberta"),
    classifier("distilbert", "DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    classifier("albert", "Albert", embedding_size=16),
    classifier("electra", "Electra", embedding_size=16),
    classifier("deberta-v2", "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    classifier("convbert", "ConvBert", embedding_size=16),
    classifier("squeezebert", "SqueezeBert", embedding_size=32),
    filler("mpnet", "MPNet"),
    filler("fnet", "FNet"),
    filler("modernbert", "ModernBert", cls_token_id=1, sep_token_id=2),
    filler("nystromformer", "Nystromformer", num_landmarks=4, segment_means_seq_len=12),
    filler("roformer", "RoFormer"),
    decoder("gpt2", "GPT2", "LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    decoder(
        "gpt-neo", "GPTNeo", attention_types=[[["global", "local"], 1]], num_layers=2, num_heads=4
    ),
    decoder("gpt-neox", "GPTNeoX"),
    decoder("gptj", "GPTJ", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    decoder("opt", "OPT", ffn_dim=48, word_embed_proj_dim=32),
    decoder("bloom", "Bloom", n_layer=2, n_head=4),
    decoder("falcon", "Falcon"),
    decoder("llama", "Llama", **GROUPED),
    decoder("mistral", "Mistral", **GROUPED, sliding_window=8),
    decoder("mixtral", "Mixtral", **GROUPED, **EXPERTS),
    decoder("qwen2", "Qwen2", **GROUPED),
    decoder("qwen3", "Qwen3", **GROUPED, head_dim=8),
    decoder("gemma", "Gemma", **GROUPED, head_dim=8),
    decoder("gemma2", "Gemma2", **GROUPED, head_dim=8),
    decoder("phi", "Phi"),
    decoder("phi3", "Phi3", **GROUPED),
    decoder("olmo2", "Olmo2", **GROUPED),
    decoder("cohere", "Cohere", **GROUPED),
    decoder("stablelm", "StableLm", **GROUPED),
    decoder("granite-moe", "GraniteMoe", **GROUPED, **EXPERTS),
    decoder("mamba", "Mamba", state_size=4),
    decoder("mamba2", "Mamba2", state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    decoder("xglm", "XGLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    translator("t5", "T5", **T5),
    translator("mt5", "MT5", **T5),
    translator("bart", "Bart", **BART),
    translator("pegasus", "Pegasus", **BART),
    translator("marian", "Marian", "MTModel", **BART),
    seer("vit", "ViT", **PICTURE),
    seer("deit", "DeiT", **PICTURE),
    seer("beit", "Beit", **PICTURE),
    seer("dinov2", "Dinov2", **PICTURE),
    seer("swin", "Swin", **SWIN),
    seer("convnext", "ConvNext", **STAGES, num_stages=2),
    seer("resnet", "ResNet", **STAGES, embedding_size=8, layer_type="basic"),
    seer("poolformer", "PoolFormer", **STAGES, **PATCHES, padding=[2, 1]),
    seer(
        "segformer", "Segformer", **STAGES, **PATCHES, num_attention_heads=[1, 2], sr_ratios=[2, 1]
    ),
    seer("mobilevit", "MobileViT", **MOBILEVIT),
    Specimen("vit-mae", made("ViTMAE", "ForPreTraining", MAE), pictures, reconstruction),
    Specimen("clip", made("CLIP", "Model", TOWERS, projection_dim=16), captioned, contrast),
    Specimen("siglip", made("Siglip", "Model", TOWERS), captioned, contrast),
    Specimen("wav2vec2", made("Wav2Vec2", "ForCTC", SOUND), transcribed_sound, sound_and_text),
    Specimen("hubert", made("Hubert", "ForCTC", SOUND), transcribed_sound, sound_and_text),
    Specimen(
        "whisper",
        made("Whisper", "ForConditionalGeneration", WHISPER),
        transcribed_spectrum,
        spectrum_and_text,
    ),
    Specimen("patchtst", made("PatchTST", "ForPrediction", PATCHTST), series, forecast),
]
