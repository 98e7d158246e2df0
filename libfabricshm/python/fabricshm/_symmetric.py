"""Sums of symmetric matrices, as Group.allreduce_symmetric() has them."""

from typing import Any, NamedTuple, Optional

from . import _fabricshm
from ._arrays import milliseconds, type_code

_METHODS = ("packed", "cholesky")
_OBSTACLES = (None, "not definite", "inaccurate", "not finite", "no memory", "no library")


class SymmetricSum(NamedTuple):
    """The sum, and how it was made; the same on all ranks."""

    array: Any
    method: str  # that was used
    obstacle: Optional[str]  # why it is not the one asked for
    jitter: float  # the largest that a rank added to its diagonal, as a fraction of its mean
    error: float  # the largest ||L L^T - A|| / ||A|| of a rank
    sent_bytes: int  # of one packed matrix
    fallbacks: int  # how often "cholesky" went as "packed" in this group


def size_of(shape):
    """n of the shape (n, n)."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"expected a square matrix, not an array of shape {tuple(shape)}")
    return shape[0]


def run(handle, data, out, method, algorithm, max_error, timeout):
    if method not in _METHODS:
        raise ValueError(f"there is no method {method!r}; there are {', '.join(_METHODS)}")
    call = _fabricshm.SymmetricCall()
    call.method = _METHODS.index(method)
    call.dtype = type_code(data.dtype)
    call.algorithm = algorithm
    call.n = size_of(data.array.shape)
    call.input, call.output = data.array, out.array
    call.max_error = max_error
    call.timeout_ms = milliseconds(timeout)
    report = handle.run_symmetric(call)
    return SymmetricSum(
        out.array, _METHODS[report.method], _OBSTACLES[report.obstacle], report.jitter,
        report.error, report.sent_bytes, report.fallbacks,
    )  # fmt: skip
