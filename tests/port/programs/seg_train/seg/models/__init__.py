from .liteseg import LiteSeg
