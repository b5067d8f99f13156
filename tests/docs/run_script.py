"""Run a script in which every warning is an error: ``python run_script.py FRAMEWORK SCRIPT``.

But for those of the framework while it is imported, and of ampbridge that a CPU simulates, or that an
optimizer of torch updates in 16 bits.
"""

import os
import runpy
import sys
import warnings

import matplotlib as mpl

import ampbridge as amp

framework, script = sys.argv[1:]
os.environ["AMPBRIDGE_TUTORIAL_BACKEND"] = framework
mpl.use("agg")
amp.backend(framework)
warnings.simplefilter("error")
warnings.simplefilter("ignore", amp.SimulationWarning)
warnings.filterwarnings("ignore", "masters=None on torch")
runpy.run_path(script, run_name="__main__")
