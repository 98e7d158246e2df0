"""What a function makes of the files of a set, made once for all processes of the host. docs/data.md.

Each sample is a file in a silo that takes new files (`from = "memory"`: the cache alone has them), by a
name that follows from the file, its version and the function. The process that creates it is its maker: the
service gives a name to one process at a time, and takes it back when that process ends.
"""

import hashlib
import math
import os
import threading
import time
import uuid
import warnings
import weakref

import numpy

from . import _recipe, data
from ._arrays import Tensor
from ._errors import DeniedError, ExistsError, FabricError, FileChangedError, NotFoundError

_HERE = weakref.WeakValueDictionary()  # the sets of samples of this process, by token
_TORCH = b" # torch:"  # in the header of an array that is a tensor, with its type: a comment for NumPy
_PAUSE_MAX = 0.05  # seconds between two looks at what another process makes
_NEW_MIN = 64  # names that are looked up one by one before the folder is listed again


class PreparationError(RuntimeError):
    """The function failed for a file, which the text names."""


class Prepared:
    """`prepared[17]`: what `prep` makes of file 17, read-only, where it lies in the pool.

    at: a folder of the namespace that takes new files. name: what prep makes, see docs/data.md; None: it
    follows from its code. wait: seconds for a sample that another process makes; then it is made here, too.
    """

    def __init__(self, files, prep, at="/prepared", name=None, wait=60.0):
        self.files = files
        self.prep = prep
        self.name = _recipe.name_of(prep) if name is None else name
        folder = hashlib.blake2b(os.fsencode(self.name), digest_size=16).hexdigest()
        self.folder = f"{at.rstrip('/')}/{folder}"
        self.made = 0  # by this process
        self.not_kept = 0  # of these; they are made again for others
        self._wait = wait
        self._token = uuid.uuid4().hex
        self._begin()

    def _begin(self):
        # A listing of the folder, and where in it samples were found, by number: always replaced as a pair.
        self._known = None, {}
        self._new = 0  # names since then that were in none
        self._lock = threading.Lock()
        _HERE[self._token] = self

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key not in ("_known", "_lock")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._begin()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        elements, kind = self._elements(index)
        return _as_tensor(elements, kind) if kind else elements

    def _elements(self, index):
        """The array, and the type of a tensor or ""."""
        view = self._find(index)
        if view is None:
            made = self._make(index)
            view = None if made is not None else self._find(index)
            if view is None:
                # Not kept, or gone again.
                return _read(memoryview(self._content(index) if made is None else made))
        return _read(view)

    def reference(self, index):
        """The same for another process: it is in the pool, or comes along."""
        found = self._place(index) is not None or self._find(index) is not None
        return Reference(self._token, index, None if found else self._make(index))

    # --- where it is ---

    def _path(self, index):
        name, size, _, _, version = self.files._handle.entry(self.files._index(index))
        words = b"".join(word.to_bytes(8, "little") for word in (size, *version))
        whole = os.fsencode(self.files.path) + b"/" + name + b"\0" + words
        return hashlib.blake2b(whole, digest_size=16).hexdigest() + ".npy"

    def _place(self, index):
        """Of a sample in a listing: the listing and its number there, or None."""
        known, at = self._known
        place = at.get(index)
        if place is None and known is not None:
            try:
                place = at[index] = known.index(self._path(index))
            except NotFoundError:
                return None
        return None if place is None else (known, place)

    def _find(self, index):
        """A view, or None."""
        known = self._known[0]
        place = self._place(index)
        try:
            if place is not None:
                return place[0][place[1]]
        except FabricError as error:
            _check_absent(error)
        name = self._path(index)
        self._list_again(known)
        try:
            return data.DataSet(f"{self.folder}/{name}", timeout=self.files._timeout,
                                socket=self.files._socket, one_file=True)[0]
        except FabricError as error:
            _check_absent(error)
            return None

    def _list_again(self, known):
        """Once for so many new names that listings cost little of the whole."""
        with self._lock:
            self._new += 1
            if self._known[0] is not known or self._new < max(_NEW_MIN, len(known or ()) // 8):
                return
            self._new = 0
        try:
            known = data.DataSet(self.folder, False, self.files._timeout, self.files._socket)
        except NotFoundError:
            known = None
        self._known = known, {}

    # --- making it ---

    def _make(self, index):
        """The file's content where it could not be kept; None: it is there."""
        path = f"{self.folder}/{self._path(index)}"
        limit, pause = time.monotonic() + self._wait, 0.001
        while True:
            try:
                out = data.create(path, timeout=self.files._timeout, socket=self.files._socket)
                break
            except ExistsError:
                # There, or another process makes it.
                if self._find(index) is not None:
                    return None
            except (DeniedError, NotFoundError) as error:
                raise type(error)(f"samples can't be kept at {self.folder}: {error}", error.code,
                                  error.name) from None  # fmt: skip
            except FabricError as error:
                return self._not_kept(self._content(index), error)
            if time.monotonic() > limit:
                return self._not_kept(self._content(index), "its maker takes long")
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX)
        content = self._content_or_abort(index, out)
        try:
            out.write(content)
            out.commit()
        except FabricError as error:
            out.abort()
            return self._not_kept(content, error)
        return None

    def _content_or_abort(self, index, out):
        try:
            return self._content(index)
        except BaseException:
            out.abort()  # so that others need not wait for it
            raise

    def _content(self, index):
        """As it is in the pool."""
        view = self.files[index]
        try:
            made = self.prep(view)
            self.made += 1
            return _written(made)
        except Exception as error:
            where = f"{self.files.path}/{self.files.names[index]}"
            raise PreparationError(f"{where}: {type(error).__name__}: {error}") from error
        finally:
            try:
                view.release()
            except BufferError:
                pass  # an array that lies on it, let go with it

    def _not_kept(self, content, why):
        if self.not_kept == 0:
            warnings.warn(f"fabricshm.data: a sample is not kept in {self.folder}: {why}", stacklevel=4)
        self.not_kept += 1
        return content


class Reference:
    """A sample on its way between processes: a number, or its bytes where it could not be kept. What comes
    out on the other side is the sample; `value` here."""

    def __init__(self, token, index, content):
        self.token, self.index, self.content = token, index, content

    @property
    def value(self):
        return _sample(self.token, self.index, self.content)

    def __reduce__(self):
        return _sample, (self.token, self.index, self.content)


class Batch:
    """Samples on their way between processes; one tensor on the other side."""

    def __init__(self, references):
        self.token = references[0].token
        self.parts = [(each.index, each.content) for each in references]

    def __reduce__(self):
        return _stacked, (self.token, self.parts)


def collate(references, *, collate_fn_map=None):
    """For torch's default_collate()."""
    return Batch(references)


def _check_absent(error):
    """Raises what is another failure than that the sample is not there: new, gone, or made just now."""
    is_absent = isinstance(error, (NotFoundError, FileChangedError)) or error.name == "FABRICSHM_EBUSY"
    if not is_absent:
        raise error


def _elements_of(token, index, content):
    return _HERE[token]._elements(index) if content is None else _read(memoryview(content))


def _sample(token, index, content):
    elements, kind = _elements_of(token, index, content)
    return _as_tensor(elements, kind) if kind else elements


def _stacked(token, parts):
    import torch

    whole = _gathered(_HERE[token], parts)
    if whole is None:
        arrays = [_elements_of(token, *part) for part in parts]
        whole = numpy.stack([elements for elements, _ in arrays]), arrays[0][1]
    numbers = torch.from_numpy(whole[0])
    return numbers.view(torch.bfloat16) if whole[1] == "bfloat16" else numbers


def _gathered(store, parts):
    """As data.stack(), and the type of a tensor; None: not all are in one listing, or of one kind."""
    places = [None if content is not None else store._place(index) for index, content in parts]
    if None in places or any(place[0] is not places[0][0] for place in places):
        return None
    known = places[0][0]
    try:
        with known[places[0][1]] as view:
            kind = _kind(view)
        return data.stack(known, [place for _, place in places]), kind
    except (FabricError, ValueError):
        return None  # one is gone, or another kind of array: looked at one by one


def _written(made):
    """A .npy file; of a tensor with its type in the header."""
    kind = b""
    if type(made).__module__.partition(".")[0] == "torch":
        import torch

        if made.device.type != "cpu":
            raise TypeError("a tensor of the CPU is kept")
        name = str(made.dtype).partition(".")[2]
        made = made.detach().contiguous()
        made = made.view(torch.int16) if name == "bfloat16" else made
        made, kind = made.numpy(), _TORCH + name.encode()
    if not isinstance(made, numpy.ndarray) or made.dtype.hasobject:
        raise TypeError(f"prep gives one NumPy array or tensor, not {type(made).__name__}")
    made = numpy.asarray(made, order="C")
    facts = numpy.lib.format.header_data_from_array_1_0(made)
    head = repr({**facts, "fortran_order": False}).encode("latin1") + kind
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"  # the numbers begin at a multiple of 64
    return b"".join((b"\x93NUMPY\x01\x00", len(head).to_bytes(2, "little"), head, made.tobytes()))


def _kind(view):
    """The type of a tensor, or ""."""
    head = bytes(view[10:10 + int.from_bytes(view[8:10], "little")])
    return head.partition(_TORCH)[2].decode().strip()


def _read(view):
    """The array of a .npy file, read-only, and the type of a tensor or ""."""
    dtype, order, shape, offset = data._npy_facts(view)
    count = math.prod(shape)
    if count == 0:
        elements = numpy.empty(shape, dtype)
        elements.flags.writeable = False
    else:
        elements = numpy.frombuffer(view, dtype, count, offset).reshape(shape, order=order)
    return elements, _kind(view)


def _as_tensor(elements, kind):
    import torch

    if not elements.size:  # it has no memory that could be shared
        return torch.empty(elements.shape, dtype=getattr(torch, kind))
    raw = torch.from_dlpack(Tensor(elements.reshape(-1).view(numpy.uint8)))
    return raw.view(getattr(torch, kind)).reshape(elements.shape)
