from types import TracebackType
from typing import Any, Literal, Optional, Sequence, Tuple, Type, TypeVar, Union

import numpy as np
import numpy.typing as npt

from ._errors import (
    BrokenGroupError as BrokenGroupError,
    ClosedError as ClosedError,
    DaemonError as DaemonError,
    DeniedError as DeniedError,
    ExistsError as ExistsError,
    FabricError as FabricError,
    FabricTimeoutError as FabricTimeoutError,
    InvalidArgumentError as InvalidArgumentError,
    MismatchError as MismatchError,
    NotFoundError as NotFoundError,
    OutOfMemoryError as OutOfMemoryError,
    PeerError as PeerError,
    PoisonedError as PoisonedError,
)
from ._fabricshm import Directive, Region, Request as Request, version as version

__version__: str

Op = Literal["sum", "avg", "min", "max", "prod", "band", "bor", "bxor"]
Array = npt.NDArray[Any]
ArrayLike = Any  # an array, a Tensor, or anything with __dlpack__
DType = Union[str, npt.DTypeLike]
Shape = Union[int, Sequence[int]]
_Self = TypeVar("_Self")

def bfloat16_from(array: npt.ArrayLike) -> npt.NDArray[np.uint16]: ...
def bfloat16_to(array: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]: ...
def from_dlpack(source: Any) -> Tensor: ...

class _Closing:
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...

class Tensor:
    array: Array
    dtype: str
    def __init__(self, array: Array, dtype: Optional[DType] = ..., handle: Any = ...) -> None: ...
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def name(self) -> Optional[str]: ...
    def __array__(self, dtype: Optional[npt.DTypeLike] = ...) -> Array: ...
    def __dlpack__(self, stream: Optional[int] = ..., **_: Any) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...
    def publish(self) -> int: ...
    def wait(self, version: int = ..., timeout: Optional[float] = ...) -> int: ...
    def free(self) -> None: ...

class Session(_Closing):
    def __init__(
        self,
        socket: Optional[str] = ...,
        timeout: float = ...,
        label: Optional[str] = ...,
        device: Optional[str] = ...,
    ) -> None: ...
    def arena(self, name: str, bytes: int = ..., exclusive: bool = ...) -> Arena: ...
    def step(
        self,
        samples: int = ...,
        loss: Optional[float] = ...,
        gradient_norm: Optional[float] = ...,
        mean_gradient_norm: Optional[float] = ...,
        compute: Optional[float] = ...,
        queue: int = ...,
        group: Optional[Group] = ...,
    ) -> None: ...
    def directives(self) -> Optional[Directive]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class Arena(_Closing):
    name: str
    @property
    def bytes(self) -> int: ...
    def __contains__(self, array: ArrayLike) -> bool: ...
    def empty(self, shape: Shape, dtype: DType = ...) -> Array: ...
    def zeros(self, shape: Shape, dtype: DType = ...) -> Array: ...
    def copy(self, source: npt.ArrayLike) -> Array: ...
    def create_tensor(self, name: str, shape: Shape, dtype: DType = ...) -> Tensor: ...
    def open_tensor(self, name: str, timeout: Optional[float] = ...) -> Tensor: ...
    def create_region(self, bytes: int) -> Region: ...
    def open_region(self, id: int) -> Region: ...
    def join(
        self, name: str, rank: Optional[int] = ..., world: int = ..., timeout: Optional[float] = ...
    ) -> Group: ...
    def close(self) -> None: ...

class Group(_Closing):
    """Collectives return the output array, or a Request with async_op=True."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def id(self) -> int: ...
    def all_reduce(
        self, array: ArrayLike, op: Op = ..., out: Optional[ArrayLike] = ..., **options: Any
    ) -> Any: ...
    def broadcast(self, array: ArrayLike, root: int = ..., **options: Any) -> Any: ...
    def reduce(
        self,
        array: ArrayLike,
        root: int = ...,
        op: Op = ...,
        out: Optional[ArrayLike] = ...,
        **options: Any,
    ) -> Any: ...
    def all_gather(
        self,
        array: ArrayLike,
        out: Optional[ArrayLike] = ...,
        counts: Optional[Sequence[int]] = ...,
        **options: Any,
    ) -> Any: ...
    def gather(
        self,
        array: ArrayLike,
        root: int = ...,
        out: Optional[ArrayLike] = ...,
        counts: Optional[Sequence[int]] = ...,
        **options: Any,
    ) -> Any: ...
    def scatter(
        self,
        out: ArrayLike,
        array: Optional[ArrayLike] = ...,
        root: int = ...,
        counts: Optional[Sequence[int]] = ...,
        **options: Any,
    ) -> Any: ...
    def reduce_scatter(
        self,
        array: ArrayLike,
        op: Op = ...,
        out: Optional[ArrayLike] = ...,
        counts: Optional[Sequence[int]] = ...,
        **options: Any,
    ) -> Any: ...
    def all_to_all(
        self,
        array: ArrayLike,
        out: Optional[ArrayLike] = ...,
        counts: Optional[Sequence[int]] = ...,
        recv_counts: Optional[Sequence[int]] = ...,
        **options: Any,
    ) -> Any: ...
    def barrier(self, **options: Any) -> Any: ...
    def send(self, array: ArrayLike, to: int, tag: int = ..., **options: Any) -> Any: ...
    def recv(
        self, out: ArrayLike, source: Optional[int] = ..., tag: int = ..., **options: Any
    ) -> Any: ...
    def shrink(self, timeout: Optional[float] = ...) -> Group: ...
    def quiesce(self, timeout: Optional[float] = ...) -> None: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...
