import os
from types import TracebackType
from typing import (
    Any,
    Callable,
    ContextManager,
    Iterable,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

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
    FileChangedError as FileChangedError,
    InvalidArgumentError as InvalidArgumentError,
    MismatchError as MismatchError,
    NotFoundError as NotFoundError,
    OutOfMemoryError as OutOfMemoryError,
    PeerError as PeerError,
    PoisonedError as PoisonedError,
)
from ._fabricshm import Directive, Hosts, Hyper, Launch, Quota, Region, Request as Request, SnapshotReport, StepReport
from ._fabricshm import version as version
from ._symmetric import SymmetricSum as SymmetricSum

__version__: str

Op = Literal[
    "sum", "avg", "min", "max", "prod", "band", "bor", "bxor",
    "land", "lor", "lxor", "minloc", "maxloc",
]  # fmt: skip
Array = npt.NDArray[Any]
ArrayLike = Any  # an array, a Tensor, or anything with __dlpack__
DType = Union[str, npt.DTypeLike]
Shape = Union[int, Sequence[int]]
Path = Union[str, "os.PathLike[str]"]
Optimiser = Literal["sgd", "adam", "adamw", "adabelief", "max_adabelief"]
_Self = TypeVar("_Self")

def launch() -> Launch: ...
def located(dtype: DType = ...) -> np.dtype[Any]: ...
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
    def arena(self, name: str, bytes: int = ..., exclusive: bool = ..., local: bool = ...) -> Arena: ...
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
    def quotas(self) -> Optional[Quota]: ...
    def hosts(self) -> Hosts: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class ChangedError(Exception): ...

class Shard:
    name: str
    version: int
    def read(self, version: int = ..., timeout: Optional[float] = ...) -> ContextManager[Array]: ...
    def copy(self, version: int = ..., timeout: Optional[float] = ...) -> Array: ...
    def write(self) -> ContextManager[Array]: ...
    def move(self, target: str, bytes_per_second: int = ...) -> None: ...
    def free(self) -> None: ...
    def close(self) -> None: ...

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
    def free_parameters(self, name: str) -> None: ...
    def create_shard(self, name: str, shape: Shape, dtype: DType = ...) -> Shard: ...
    def open_shard(self, name: str, timeout: Optional[float] = ...) -> Shard: ...
    def create_region(self, bytes: int) -> Region: ...
    def open_region(self, id: int) -> Region: ...
    def join(
        self, name: str, rank: Optional[int] = ..., world: int = ..., timeout: Optional[float] = ...,
        exchange: Optional[Callable[[bytes], Sequence[bytes]]] = ..., trusted: Optional[str] = ...
    ) -> Group: ...
    def close(self) -> None: ...

class Group(_Closing):
    """Collectives return the output array, or a Request with async_op=True."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def hosts(self) -> int: ...
    @property
    def id(self) -> int: ...
    def all_reduce(
        self, array: ArrayLike, op: Op = ..., out: Optional[ArrayLike] = ..., **options: Any
    ) -> Any: ...
    def allreduce_symmetric(
        self,
        array: ArrayLike,
        method: Literal["packed", "cholesky"] = ...,
        out: Optional[ArrayLike] = ...,
        max_error: float = ...,
        algorithm: str = ...,
        timeout: Optional[float] = ...,
    ) -> SymmetricSum: ...
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
    def scan(
        self, array: ArrayLike, op: Op = ..., out: Optional[ArrayLike] = ..., **options: Any
    ) -> Any: ...
    def exscan(
        self, array: ArrayLike, op: Op = ..., out: Optional[ArrayLike] = ..., **options: Any
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

def hyper(**values: float) -> Hyper: ...

class Snapshot:
    directory: str
    report: Optional[SnapshotReport]
    def __init__(self, handle: Any, directory: str) -> None: ...
    @property
    def over(self) -> bool: ...
    def wait(self, timeout: Optional[float] = ...) -> SnapshotReport: ...

def latest_snapshot(directory: Path) -> str: ...

class Parameters:
    name: str
    optimiser: str
    values: Mapping[str, Array]
    gradients: Mapping[str, Array]
    copies: Mapping[str, Array]
    states: Mapping[str, List[Array]]
    arena: Optional[Arena]
    def __init__(
        self,
        group: Group,
        name: str,
        shapes: Mapping[str, Shape],
        optimiser: Optimiser = ...,
        gradients: DType = ...,
        copy: Optional[DType] = ...,
        slots: int = ...,
        options: Optional[Mapping[str, int]] = ...,
        timeout: Optional[float] = ...,
        arena: Union[Arena, Sequence[Optional[Arena]], None] = ...,
    ) -> None: ...
    @staticmethod
    def bytes(
        shapes: Mapping[str, Shape],
        world: int,
        optimiser: Optimiser = ...,
        gradients: DType = ...,
        copy: Optional[DType] = ...,
    ) -> int: ...
    @property
    def steps(self) -> int: ...
    @steps.setter
    def steps(self, count: int) -> None: ...
    def step(
        self,
        options: Optional[Sequence[Hyper]] = ...,
        weight: Optional[float] = ...,
        scale: float = ...,
        clip_norm: Optional[float] = ...,
        skip_nonfinite: bool = ...,
        timeout: Optional[float] = ...,
        **values: float,
    ) -> StepReport: ...
    def push(
        self,
        options: Sequence[Hyper],
        weight: Optional[float] = ...,
        scale: float = ...,
        timeout: Optional[float] = ...,
    ) -> StepReport: ...
    def pull(self, addresses: Sequence[int], timeout: Optional[float] = ...) -> None: ...
    def advance(self, staleness: int, timeout: Optional[float] = ...) -> int: ...
    def finish(self, timeout: Optional[float] = ...) -> None: ...
    def share(self, shares: Sequence[float]) -> None: ...
    def recover(self, group: Group, timeout: Optional[float] = ...) -> bool: ...
    def snapshot(
        self,
        directory: Path,
        keep: int = ...,
        file_bytes: Optional[int] = ...,
        plain_writes: bool = ...,
        timeout: Optional[float] = ...,
    ) -> Snapshot: ...
    def restore(self, path: Path, timeout: Optional[float] = ...) -> int: ...
    def close(self) -> None: ...

class ParameterServer:
    staleness: int
    timeout: Optional[float]
    report: Optional[StepReport]
    version: int
    rule: str
    group: Group
    tensors: List[Any]
    def __init__(
        self,
        parameters: Optional[Iterable[Any]] = ...,
        optimizer: Any = ...,
        staleness: int = ...,
        group: Optional[Group] = ...,
        name: str = ...,
        timeout: Optional[float] = ...,
        arena: Union[Arena, Sequence[Optional[Arena]], None] = ...,
        **values: Any,
    ) -> None: ...
    def zero_grad(self, set_to_none: bool = ...) -> None: ...
    def step(self, weight: Optional[float] = ..., scale: float = ...) -> None: ...
    def pull(self) -> None: ...
    def synchronise(self) -> None: ...
    def assign(self) -> None: ...
    @property
    def steps(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> ParameterServer: ...
    def __exit__(self, kind: Any, *rest: Any) -> None: ...
