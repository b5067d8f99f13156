import argparse
import functools

from asr.trainer import ASRTrainer
from asr.utils.utils import add_arguments, print_arguments

parser = argparse.ArgumentParser(description=__doc__)
add_arg = functools.partial(add_arguments, argparser=parser)
add_arg('configs',          str,   'configs/conformer.yml',      'the configuration file')
add_arg('use_gpu',          bool,  True,                         'whether to train on a GPU')
add_arg('augment_conf_path', str,  'configs/augmentation.json',  'how sounds are changed, as JSON')
add_arg('save_model_path',  str,   'models/',                    'where models are kept')
add_arg('resume_model',     str,   None,                         'go on from this, None does not')
add_arg('overwrites',       str,   None,                         'values over those of the file')
add_arg('pretrained_model', str,   None,                         'begin with the weights of this')
args = parser.parse_args()
print_arguments(args=args)

# what trains
trainer = ASRTrainer(configs=args.configs, use_gpu=args.use_gpu, overwrites=args.overwrites)

trainer.train(save_model_path=args.save_model_path,
              resume_model=args.resume_model,
              pretrained_model=args.pretrained_model,
              augment_conf_path=args.augment_conf_path)
