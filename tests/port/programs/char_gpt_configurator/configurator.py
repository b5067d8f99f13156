"""
Run by exec in train.py: a file named on the command line, then --key=value, replace its globals.
"""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        print(f"Overriding config with {arg}")
        exec(open(arg).read())
    else:
        key, val = arg.removeprefix("--").split("=")
        if key not in globals():
            raise ValueError(f"Unknown config key: {key}")
        try:
            attempt = literal_eval(val)
        except (SyntaxError, ValueError):
            attempt = val
        assert type(attempt) is type(globals()[key])
        globals()[key] = attempt
