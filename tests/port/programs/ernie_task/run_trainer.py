# -*- coding: utf-8 -*
"""The entry of all trainings: what is trained, and how, is what a json file says.

python run_trainer.py --param_path ./examples/cls_ernie_fc_ch.json
"""
import argparse
import logging
import os
import sys

sys.path.append("./")

from erniekit.common.register import RegisterSet, import_modules
from erniekit.common.util import from_file, print_params
from erniekit.controller import reader as _reader

logging.basicConfig(level=logging.INFO)


def build_args():
    parser = argparse.ArgumentParser(description="run training of a task")
    parser.add_argument(
        "--param_path", type=str, default="./examples/cls_ernie_fc_ch.json", help="the json file"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def build_reader(params_dict):
    """Reader by reader, by the classes that are registered under their types."""
    readers = {}
    for name, params in params_dict.items():
        reader_class = RegisterSet.data_set_reader.__getitem__(params["type"])
        readers[name] = reader_class(params["config"])
    return _reader.DataSetReaders(**readers)


def build_model(params_dict):
    model_class = RegisterSet.models.__getitem__(params_dict["type"])
    return model_class(params_dict)


def build_trainer(params_dict, dataset_reader, model):
    trainer_class = RegisterSet.trainer.__getitem__(params_dict["type"])
    return trainer_class(params=params_dict, data_set_reader=dataset_reader, model=model)


def run_trainer(param_dict):
    """Make reader, model and trainer, and train."""
    logging.info("run trainer.... pid = " + str(os.getpid()))
    dataset_reader_params_dict = param_dict.get("dataset_reader")
    dataset_reader = build_reader(dataset_reader_params_dict)

    model_params_dict = param_dict.get("model")
    model = build_model(model_params_dict)

    trainer_params_dict = param_dict.get("trainer")
    trainer = build_trainer(trainer_params_dict, dataset_reader, model)
    trainer.do_train()
    logging.info("end of run train and eval .....")


if __name__ == "__main__":
    args = build_args()
    import_modules(["erniekit.model.classification", "trainer.custom_dynamic_trainer"])
    params = from_file(args.param_path)
    print_params(params)
    run_trainer(params)
