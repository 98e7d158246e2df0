"""Files of silos, read where they lie in the pool. docs/data.md.

    import fabricshm.data as data
    images = data.open("/images/train")      # a listing: names and sizes, no bytes yet
    view = images["n01440764/x.jpeg"]        # a read-only memoryview, straight into the pool

The service of the host (`fabric-data serve`) keeps what is read in the pool once for all processes. A view
pins its file there until it is released (`view.release()`, or `with images[17] as view`) and nothing else
refers to it. Everything works in a process that was forked, and sets can be pickled: DataLoader workers
make a way of their own.
"""

import operator
import os
import threading
from collections.abc import Sequence

import numpy

from . import _fabricshm
from ._arrays import Tensor, milliseconds
from ._errors import FileChangedError

_CLIENTS = {}  # by socket
_LOCK = threading.Lock()


def _new_lock():
    # The parent's may be held by a thread that the child does not have.
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def _client(socket):
    with _LOCK:
        if socket not in _CLIENTS:
            _CLIENTS[socket] = _fabricshm.Data(socket)
        return _CLIENTS[socket]


def _encoded(path):
    """As the bytes that the service knows; a zero would end them early."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return name


def open(path, *, recursive=True, timeout=None, socket=None):
    """The files below the folder `path` as they are now: a DataSet. Of a file: that one, by its last name.

    recursive: of all folders below, named "folder/file"; else the folder's own, and its folders.
    timeout: seconds, of this and of later reads; by default 30. socket: the data service's; by default
    $FABRIC_DATA_SOCKET, then the usual places.
    """
    return DataSet(path, recursive, timeout, socket)


def create(path, *, timeout=None, socket=None):
    """A new file, to be written: `with data.create("/features/a.npy") as out: out.write(...)`.

    It is there when the block ends, in the silo too, and never in part: when the block raises, nothing is.
    """
    return DataWriter(_client(socket).create(_encoded(path), milliseconds(timeout)), timeout)


def stats(socket=None):
    """What this process did so far: hits and misses (files or parts of them), stall (seconds), bytes,
    copies (for want of slots), pinned (views that are held) and slots (that can be held)."""
    return _client(socket).stats()


class _Names(Sequence):
    """The names of a set, made when they are asked for."""

    def __init__(self, handle):
        self._handle = handle

    def __len__(self):
        return len(self._handle)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return os.fsdecode(self._handle.name(_below(index, len(self))))


def _below(index, count):
    try:
        index = operator.index(index)
    except TypeError:
        raise TypeError(f"files are found by number, name or slice, not by {type(index).__name__}") from None
    at = index + count if index < 0 else index
    if not 0 <= at < count:
        raise IndexError(f"{index} of a set of {count}")
    return at


class DataSet:
    """Files as they were when it was opened, in the order of their names' bytes.

    `len(set)`, `set.names`, `set.sizes`; `set[17]` and `set["name"]` are views. What is read is always of the
    versions that were listed: a file that was replaced since raises FileChangedError.
    """

    def __init__(self, path, recursive=True, timeout=None, socket=None, one_file=False):
        self.path = path
        self._recursive = recursive
        self._timeout = timeout
        self._socket = socket
        self._one_file = one_file  # the path is a file, and the set has it alone
        self._handle = _client(socket).list(_encoded(path), recursive, one_file, milliseconds(timeout))

    def __len__(self):
        return len(self._handle)

    @property
    def names(self):
        """A sequence of str; bytes that are no UTF-8 as os.fsdecode() shows them."""
        return _Names(self._handle)

    @property
    def sizes(self):
        """Bytes of each file, as a NumPy array; 0 of folders."""
        return self._handle.sizes()

    def index(self, name):
        """Where the file of that name is. NotFoundError."""
        return self._handle.find(os.fsencode(name))

    def __contains__(self, name):
        try:
            self.index(name)
        except (LookupError, TypeError):  # what is no name is none of theirs
            return False
        return True

    def _index(self, which):
        if isinstance(which, (str, bytes, os.PathLike)):
            return self.index(which)
        return _below(which, len(self))

    def __getitem__(self, which):
        """A read-only memoryview of a whole file, by number or name; of a slice a list of them. Up to 4 MiB
        it is the pool's memory, which stays as it is until the view is released; a larger file is copied, since it lies in
        several parts, and so is any file while 3,968 views are held."""
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        return self._handle.view(self._index(which), milliseconds(self._timeout))

    def read(self, which, offset=0, size=None):
        """A copy as bytes: `size` from `offset` on, or what there is to the file's end."""
        most = 2**63 if size is None else size
        return self._handle.read(self._index(which), offset, most, milliseconds(self._timeout))

    def entry(self, which):
        """A dict of name, bytes, folder, mtime (seconds; None: not known) and version."""
        name, size, folder, mtime, version = self._handle.entry(self._index(which))
        return {"name": os.fsdecode(name), "bytes": size, "folder": folder,
                "mtime": mtime * 1e-9 if mtime else None, "version": version}

    def plan(self, sampler=None, *, seed=0, epoch=0, rank=0, world=1, position=0, shuffle=True,
             drop_last=False):
        """Announces the order of an epoch, so that each file is fetched before it is read.

        sampler: a FabricSampler, whose seed, epoch, rank and place are taken, or a DistributedSampler,
        after its set_epoch(). Without one the order is torch.randperm() with seed + epoch, as theirs is.
        position: samples of the epoch that were read before, by all ranks. Advice: it may be left out.
        """
        kind = 1
        if sampler is not None:
            shuffle, drop_last = sampler.shuffle, sampler.drop_last
            seed, epoch = sampler.seed, sampler.epoch
            rank, world = sampler.rank, sampler.num_replicas
            if hasattr(sampler, "advance"):  # a FabricSampler
                kind, position = 0, sampler.position
        self._handle.announce(kind, seed, epoch, rank, world, position, shuffle, drop_last)

    def __reduce__(self):
        how = (self.path, self._recursive, self._timeout, self._socket, self._one_file)
        return _reopen, (*how, self._handle.fingerprint())

    def __repr__(self):
        return f"DataSet({self.path!r}, {len(self)} files)"


def _reopen(path, recursive, timeout, socket, one_file, fingerprint):
    """A set in another process: of the same files, or none, since numbers would mean others."""
    made = DataSet(path, recursive, timeout, socket, one_file)
    if made._handle.fingerprint() != fingerprint:
        raise FileChangedError(f"files of {path} were added, removed or replaced since the set was opened",
                               -19, "FABRICSHM_ECHANGED")
    return made


class DataWriter:
    """A file that is being written; a context manager, see create()."""

    def __init__(self, handle, timeout):
        self._handle = handle
        self._timeout = timeout

    def write(self, bytes):
        """Appends anything with the buffer protocol; returns how many bytes that was."""
        return self._handle.write(bytes, milliseconds(self._timeout))

    def commit(self):
        """Ends the file: it is under its name when this returns."""
        self._handle.commit(milliseconds(self._timeout))

    def abort(self):
        """Drops it. After a commit nothing happens."""
        self._handle.abort()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.commit()
        else:
            self.abort()


def array(files, which, dtype=None, shape=None):
    """A file of a DataSet as a NumPy array on the same bytes, which stay pinned while the array or any view
    of it is there. A `.npy` file says its type and shape itself; else elements of `dtype` (default uint8)
    in `shape` (default: as many as there are). Read-only."""
    view = files[which]
    if dtype is None and view[:6] == b"\x93NUMPY":
        dtype, order, found, offset = _npy_facts(view)
        shape = found if shape is None else shape
        elements = numpy.frombuffer(view, dtype=dtype, offset=offset)
        return elements.reshape(shape, order=order)
    elements = numpy.frombuffer(view, dtype=numpy.uint8 if dtype is None else dtype)
    return elements if shape is None else elements.reshape(shape)


def stack(files, which, out=None):
    """Several `.npy` files of a DataSet, of one type and shape, as one array: a batch, copied in one call that
    takes no lock of the interpreter. which: numbers, -1 is the last. out: an array that it is written to, contiguous.
    ValueError names a file that is another kind of array."""
    numbers = numpy.asarray(which)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError("stack() takes the numbers of some files")
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"stack() takes the numbers of files, not {numbers.dtype}")
    if numbers.min() < 0:
        numbers = numpy.where(numbers < 0, numbers + len(files), numbers)
    if numbers.min() < 0 or numbers.max() >= len(files):
        raise IndexError(f"stack(): a set of {len(files)} files has no such number")
    numbers = numbers.astype(numpy.uint64)
    with files[int(numbers[0])] as view:
        dtype, order, shape, offset = _npy_facts(view)
        head = bytes(view[:offset])
    if order != "C":
        raise ValueError(f"{files.names[int(numbers[0])]} is an array in Fortran's order")
    whole = (len(numbers), *shape)
    if out is None:
        out = numpy.empty(whole, dtype)
    elif out.shape != whole or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.dtype} {out.shape}; the files give {dtype} {whole}, contiguous")
    # Bytes: not every type of NumPy has the buffer protocol.
    other = files._handle.gather(numbers, head, out.reshape(-1).view(numpy.uint8),
                                 milliseconds(files._timeout))
    if other >= 0:
        raise ValueError(f"{files.names[other]} is another kind of array than {files.names[int(numbers[0])]}")
    return out


def tensor(files, which, dtype=None, shape=None):
    """The same as a fabricshm.Tensor, which has DLPack: torch.from_dlpack(data.tensor(files, 17)). The memory
    is mapped read-only: an operation in place on it ends the process with a signal."""
    return Tensor(array(files, which, dtype, shape))


class _Head:
    """The start of a view as the file that numpy's own parser reads."""

    def __init__(self, view):
        self._view = view
        self.at = 0

    def read(self, count):
        piece = bytes(self._view[self.at:self.at + count])
        self.at += len(piece)
        return piece


_HEADS = {}  # of .npy files: what numpy's parser, which takes 30 us, has said of them
_HEAD_BYTES = 128  # that it writes before a plain array
_HEADS_MAX = 4096


def _npy_facts(view):
    """The type, order and shape of a .npy file, and where its numbers begin."""
    head = bytes(view[:_HEAD_BYTES])
    facts = _HEADS.get(head)
    if facts is None:
        facts = _npy_header(view)
        if facts[-1] <= _HEAD_BYTES and len(_HEADS) < _HEADS_MAX:
            _HEADS[head] = facts
    return facts


def _npy_header(view):
    head = _Head(view)
    version = numpy.lib.format.read_magic(head)
    if version == (1, 0):
        shape, fortran, dtype = numpy.lib.format.read_array_header_1_0(head)
    elif version == (2, 0):
        shape, fortran, dtype = numpy.lib.format.read_array_header_2_0(head)
    else:
        raise ValueError(f".npy of version {version}")
    if dtype.hasobject:
        raise ValueError("a .npy of Python objects cannot be read in place")
    return dtype, "F" if fortran else "C", shape, head.at


def __getattr__(name):
    if name in ("Prepared", "PreparationError"):
        from . import _prepared

        return getattr(_prepared, name)
    # Only these need PyTorch.
    if name in ("Dataset", "IterableDataset"):
        from . import _data_torch

        return getattr(_data_torch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
