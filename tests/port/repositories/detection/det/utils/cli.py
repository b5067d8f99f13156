from argparse import ArgumentParser, RawDescriptionHelpFormatter

import yaml


class ArgsParser(ArgumentParser):
    def __init__(self):
        super(ArgsParser, self).__init__(formatter_class=RawDescriptionHelpFormatter)
        self.add_argument("-c", "--config", help="configuration file to use")
        self.add_argument("-o", "--opt", nargs="*", help="set configuration options")

    def parse_args(self, argv=None):
        args = super(ArgsParser, self).parse_args(argv)
        assert args.config is not None, "Please specify --config=configure_file_path."
        args.opt = self._parse_opt(args.opt)
        return args

    def _parse_opt(self, opts):
        config = {}
        for s in opts or ():
            k, v = s.strip().split("=", 1)
            config[k] = yaml.load(v, Loader=yaml.Loader)
        return config


def merge_args(config, args, exclude_args=["config", "opt", "slim_config"]):
    for k, v in vars(args).items():
        if k not in exclude_args:
            config[k] = v
    return config
