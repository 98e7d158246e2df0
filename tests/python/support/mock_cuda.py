"""A CUDA device for tests of a torch without one: tests/support/mock_torch, and Python's side of it."""

import importlib.util

import fabric_test
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
    torch._C._cuda_isCurrentStreamCapturing = module.is_capturing
    return module


def _why_not(rank, world, path):
    with fabric_test.process_group("fabricshm", path, rank, world) as dist:
        try:
            dist.all_reduce(torch.ones(1).cuda())
        except RuntimeError as error:
            return str(error)
    return ""


def skip_without_kernels():
    """Ends the test where the library was built without its CUDA kernels."""
    reason = fabric_test.run_ranks(_why_not, 1, fabric_test.store_path())[0]
    if "without nvcc" in reason:
        fabric_test.skip(reason)
