"""From a path to a ``Reading``: what a program's files say of mixed precision, without running them."""
