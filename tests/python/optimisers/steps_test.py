"""Twenty steps of SGD, Adam and AdamW next to torch.optim's, from the same gradients: an outside check of the formulas.

PyTorch rounds a product and a sum at once where its processor can, the kernels each by itself, so that every processor gives the same
bits. Parameters and state are compared in units in the last place of the largest value that went into them.
"""

import ctypes
import sys

try:
    import torch
except ImportError:
    print("skipped: no torch")
    sys.exit(77)

COUNT, STEPS = 10_007, 20
# Of the largest magnitude in the history of an element, in f32's 2^-23. The worst of the cases below was 6.0, with PyTorch 1.13.
BOUND = 8

CASES = [
    ("sgd", {}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("sgd", {"momentum": 0.9, "maximize": True}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6}),
    ("adam", {"maximize": True}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.3, "betas": (0.95, 0.9999)}),
    ("adamw", {"weight_decay": 0.0}),
]
OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
STATE = {"sgd": ["momentum_buffer"], "adam": ["exp_avg", "exp_avg_sq"], "adamw": ["exp_avg", "exp_avg_sq"]}


def hyper_of(options):
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    values = [options["lr"], beta1, beta2, options.get("eps", 1e-8), options.get("weight_decay", 0), options.get("momentum", 0),
              options.get("dampening", 0), options.get("nesterov", False), options.get("maximize", False)]
    return (ctypes.c_double * 9)(*values)


def worst_distance(library, rule, options):
    """After all steps, in units in the last place of the largest value of each element."""
    options = dict(options, lr=0.05)
    torch.manual_seed(1)
    theirs = torch.randn(COUNT, requires_grad=True)
    arrays = [theirs.detach().clone(), torch.zeros(COUNT), torch.zeros(COUNT)]
    pointers = (ctypes.c_void_p * 3)(*(array.data_ptr() for array in arrays))
    # AdamW's default is not zero.
    optimiser = OPTIMISERS[rule]([theirs], **dict({"weight_decay": 0}, **options))
    largest = [array.abs() for array in arrays]
    for number in range(1, STEPS + 1):
        gradient = torch.randn(COUNT)
        theirs.grad = gradient.clone()
        optimiser.step()
        if library.step(rule.encode(), hyper_of(options), number, ctypes.c_void_p(gradient.data_ptr()), pointers, COUNT) != 0:
            raise AssertionError(rule + " is not known")
        largest = [torch.maximum(a, b.abs()) for a, b in zip(largest, arrays)]
    state = optimiser.state[theirs]
    right = [theirs.detach()] + [state[name] for name in STATE[rule] if state.get(name) is not None]
    distances = [(a.double() - b.double()).abs() / (most.double() * 2.0**-23 + 1e-300)
                 for a, b, most in zip(arrays, right, largest)]
    return max(distance.max().item() for distance in distances)


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.step.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong]
    failures = 0
    for rule, options in CASES:
        distance = worst_distance(library, rule, options)
        verdict = "ok" if distance <= BOUND else "FAILED"
        failures += distance > BOUND
        print(f"{verdict}: {rule} {options}: {distance:.2f} units in the last place")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
