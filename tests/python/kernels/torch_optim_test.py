"""The optimiser kernels beside torch.optim: 50 steps of the same gradients, from the same parameters."""

import ctypes
import os
import sys
import unittest

try:
    import numpy
    import torch
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)

STEPS = 50
COUNT = 20000
SGD, ADAM, ADAMW = 0, 1, 2  # kernels/optimise.hpp

# Units in the last place between a parameter of ours and PyTorch's, the largest of all parameters
# after any step. Both round each operation; PyTorch's vector loops round products and sums together
# where the processor can (docs/optimisers.md), its plain ones don't.
PLAIN = os.environ.get("ATEN_CPU_CAPABILITY") == "default"
LARGEST = 0 if PLAIN else 2


class Options(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in (
        "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "momentum", "dampening")] + [
            ("nesterov", ctypes.c_int32), ("maximize", ctypes.c_int32)]


def options(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum=0, dampening=0, nesterov=False,
            maximize=False):
    return Options(lr, *betas, eps, weight_decay, momentum, dampening, nesterov, maximize)


class Kernel:
    """One parameter and its states, stepped by the library."""

    def __init__(self, rule, parameters, **arguments):
        self.rule, self.options, self.steps = rule, options(**arguments), 0
        self.parameters = parameters.copy()
        self.states = [numpy.zeros_like(parameters) for _ in range(3)]

    def step(self, gradient):
        self.steps += 1
        arrays = [a.ctypes.data_as(ctypes.c_void_p) for a in (gradient, self.parameters, *self.states)]
        code = LIBRARY.fabric_test_optimise(
            self.rule, ctypes.byref(self.options), ctypes.c_uint64(self.steps),
            ctypes.c_uint64(len(gradient)), *arrays)
        assert code == 0, "the kernel refuses these options"


def units_apart(ours, theirs):
    """In units in the last place of PyTorch's value: signs and exponents agree, or it is large."""
    return numpy.max(numpy.abs(ours.astype("f8") - theirs.astype("f8")) / numpy.spacing(numpy.abs(theirs)))


def largest_distance(rule, optimiser, **arguments):
    random = numpy.random.default_rng(3)
    # Away from zero: what is a unit in the last place has to stay so.
    start = (random.uniform(0.5, 4, COUNT) * random.choice([-1, 1], COUNT)).astype("f4")
    kernel = Kernel(rule, start, **arguments)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    torch_optimiser = optimiser([parameter], foreach=False, **arguments)
    farthest = 0
    for _ in range(STEPS):
        gradient = random.standard_normal(COUNT).astype("f4")
        kernel.step(gradient)
        parameter.grad = torch.from_numpy(gradient)
        torch_optimiser.step()
        farthest = max(farthest, units_apart(kernel.parameters, parameter.detach().numpy()))
    return farthest


class TorchOptim(unittest.TestCase):
    def compare(self, name, rule, optimiser, cases):
        for arguments in cases:
            with self.subTest(**arguments):
                distance = largest_distance(rule, optimiser, **arguments)
                print(f"{name} {arguments}: {distance:.0f} units in the last place")
                self.assertLessEqual(distance, LARGEST)

    def test_sgd_is_as_near_as_documented(self):
        self.compare("sgd", SGD, torch.optim.SGD, [
            {"lr": 1e-3}, {"lr": 1e-3, "momentum": 0.9}, {"lr": 1e-3, "momentum": 0.9, "nesterov": True},
            {"lr": 1e-3, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01},
            {"lr": 1e-3, "momentum": 0.9, "maximize": True}])

    def test_adam_is_as_near_as_documented(self):
        self.compare("adam", ADAM, torch.optim.Adam, [
            {"lr": 1e-3}, {"lr": 1e-3, "weight_decay": 0.01}, {"lr": 1e-3, "betas": (0.8, 0.95), "eps": 1e-4},
            {"lr": 1e-3, "maximize": True}])

    def test_adamw_is_as_near_as_documented(self):
        self.compare("adamw", ADAMW, torch.optim.AdamW, [
            {"lr": 1e-3, "weight_decay": 0}, {"lr": 1e-3, "weight_decay": 0.01}, {"lr": 1e-3, "weight_decay": 0.1},
            {"lr": 1e-3, "weight_decay": 0.01, "maximize": True}])


if __name__ == "__main__":
    LIBRARY = ctypes.CDLL(os.path.abspath(sys.argv.pop(1)))
    unittest.main()
