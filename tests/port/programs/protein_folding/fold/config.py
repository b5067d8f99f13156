"""The sizes of the model by name, as nested dictionaries with attributes."""

import copy


class ConfigDict(dict):
    def __init__(self, values):
        super().__init__()
        for key, value in values.items():
            self[key] = ConfigDict(value) if isinstance(value, dict) else value

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(key) from error

    def __setattr__(self, key, value):
        self[key] = value


CONFIG = {
    "data": {
        "common": {"max_recycling_iters": 3, "num_features": 22, "msa_features": 49},
        "eval": {"crop_size": 256, "max_msa_clusters": 128, "max_extra_msa": 1024},
    },
    "model": {
        "embeddings_and_evoformer": {
            "evoformer_num_block": 48,
            "msa_channel": 256,
            "pair_channel": 128,
            "seq_channel": 384,
            "max_relative_feature": 32,
            "recycle_features": True,
            "recycle_pos": True,
            "msa_heads": 8,
            "pair_heads": 4,
            "dropout_rate": 0.15,
            "transition_factor": 4,
        },
        "global_config": {
            "deterministic": False,
            "subbatch_size": 4,
            "zero_init": True,
            "low_memory": False,
        },
        "heads": {
            "distogram": {"first_break": 2.3125, "last_break": 21.6875, "num_bins": 64, "weight": 0.3},
            "masked_msa": {"num_output": 23, "weight": 2.0},
            "structure_module": {"num_layer": 8, "num_channel": 384, "num_head": 12, "weight": 1.0},
            "predicted_lddt": {"num_bins": 50, "num_channel": 128, "weight": 0.01},
        },
        "num_recycle": 3,
        "resample_msa_in_recycling": True,
    },
}

PRESETS = {
    "initial": {
        "data.eval.crop_size": 256,
        "data.eval.max_msa_clusters": 128,
        "model.heads.structure_module.weight": 1.0,
    },
    "finetune": {
        "data.eval.crop_size": 384,
        "data.eval.max_msa_clusters": 512,
        "data.eval.max_extra_msa": 5120,
        "model.heads.structure_module.weight": 2.0,
    },
    "demo": {
        "model.embeddings_and_evoformer.evoformer_num_block": 2,
        "model.heads.structure_module.num_layer": 2,
        "data.eval.crop_size": 64,
    },
}


def model_config(name):
    if name not in PRESETS:
        raise ValueError("no model named {}; there are {}".format(name, ", ".join(PRESETS)))
    config = ConfigDict(copy.deepcopy(CONFIG))
    for path, value in PRESETS[name].items():
        *sections, last = path.split(".")
        section = config
        for part in sections:
            section = section[part]
        section[last] = value
    return config
