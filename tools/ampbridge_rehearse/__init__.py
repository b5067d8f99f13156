"""A CUDA training script, run for a few steps on a machine without a GPU.

    python -m ampbridge_rehearse train.py --steps 3 -- its own arguments

The script runs unchanged on ``ampbridge_rehearse.virtual_cuda``; a report follows of what its kernels
ran in, its loss scale, the lines at which the host waited for the device, and what a real device
would do otherwise.
"""
