import os

AMP_DTYPE = "float16"
INIT_SCALE = 2.0**14
CLIP = 1.0
ACCUMULATION = int(os.environ["ACCUMULATION"]) if "ACCUMULATION" in os.environ else 8
