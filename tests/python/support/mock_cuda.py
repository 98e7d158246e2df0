"""A CUDA device for tests of a torch without one: tests/support/mock_torch, and Python's side of it."""

import importlib.util

import torch


def load(path):
    """The module mock_torch at `path`, after which "cuda" is a device of this torch. Nothing is started
    before the first tensor is made there: ranks may be forked before."""
    spec = importlib.util.spec_from_file_location("mock_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Torch asks here before it uses a device.
    torch.cuda._lazy_init = lambda: None
    torch._C._cuda_getCurrentRawStream = module.raw_stream
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    return module
