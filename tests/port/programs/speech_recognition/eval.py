import argparse
import functools
import time

from asr.trainer import ASRTrainer
from asr.utils.utils import add_arguments, print_arguments

parser = argparse.ArgumentParser(description=__doc__)
add_arg = functools.partial(add_arguments, argparser=parser)
add_arg('configs',      str,  'configs/conformer.yml',          'the configuration file')
add_arg('use_gpu',      bool, True,                             'whether to evaluate on a GPU')
add_arg('resume_model', str,  'models/conformer/best_model/',   'the model to evaluate')
args = parser.parse_args()
print_arguments(args=args)

trainer = ASRTrainer(configs=args.configs, use_gpu=args.use_gpu)
start = time.time()
loss, error = trainer.evaluate(resume_model=args.resume_model, display_result=True)
print('{:.1f}s, loss {:.5f}, error {:.5f}'.format(time.time() - start, loss, error))
