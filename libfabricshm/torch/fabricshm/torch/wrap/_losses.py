"""Losses whose gradient over a batch is not the mean of its pieces': one line for a script that has such a loss."""

import functools
import inspect

import torch

SUM = ("a loss has reduction='sum', and gradients are merged as means: start the script with --wrap-reduction sum if "
       "it is what backward() is called on")  # fmt: skip
WEIGHTED = ("a loss has weight=, and its mean is over the weights of the classes: pieces count by their samples, so "
            "gradients are not those of one process. reduction='none' and a mean over samples are")  # fmt: skip
IGNORED = ("targets have the ignore_index of a loss, and its mean is over the others: pieces count by their samples, so "
           "gradients are not those of one process, if pieces have unequal numbers of them")  # fmt: skip
_OVER_WEIGHTS = ("cross_entropy", "nll_loss")  # those whose mean is not over samples or elements


def install(wrapping):
    """Between the script and the losses of torch.nn.functional, which those of torch.nn call."""
    functional = torch.nn.functional
    originals, watched = {}, {}
    for name in dir(functional):
        function = getattr(functional, name)
        if not name.startswith("_") and inspect.isfunction(function):
            known = inspect.signature(function)
            if "reduction" in known.parameters:
                originals[name] = function
                watched[name] = _watched(wrapping, function, known, name in _OVER_WEIGHTS)
    vars(functional).update(watched)
    torch.jit.script = _with(originals, torch.jit.script)


def _with(originals, compiler):
    """torch.jit.script(), which reads the sources of the functions that it finds."""

    @functools.wraps(compiler)
    def script(obj, *arguments, _frames_up=0, **options):
        functional = vars(torch.nn.functional)
        before = {name: functional[name] for name in originals}  # it calls itself
        functional.update(originals)
        try:
            return compiler(obj, *arguments, _frames_up=_frames_up + 1, **options)
        finally:
            functional.update(before)

    return script


def _watched(wrapping, function, known, over_weights):
    @functools.wraps(function)
    def loss(*arguments, **options):
        found = function(*arguments, **options)
        # Not those of a validation, or of a metric.
        if wrapping.trains_on_piece and torch.is_tensor(found) and found.requires_grad:
            bound = known.bind(*arguments, **options)
            bound.apply_defaults()
            _look(wrapping, bound.arguments, over_weights)
        return found

    return loss


def _look(wrapping, given, over_weights):
    if given["reduction"] == "sum" and wrapping.reduction != "sum":
        wrapping.say_once(SUM)
    if not over_weights or given["reduction"] != "mean":
        return
    if given["weight"] is not None:
        wrapping.say_once(WEIGHTED)
    target = given["target"]
    if not wrapping.saw_ignored and not target.is_floating_point():
        wrapping.saw_ignored = bool((target == given["ignore_index"]).any())
