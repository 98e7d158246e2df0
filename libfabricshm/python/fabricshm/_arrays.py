"""Element types, and arrays as the collectives take them."""

import numpy

from . import _fabricshm

# Of the library's tables: name and code of each type, and the NumPy type of the arrays that hold it.
# NumPy has no bfloat16 and no floats of 8 bits: their bits travel as uint16 and uint8.
_NUMBERS = [row for row in _fabricshm.DTYPES if not row.located]
_CODES = {row.name: row.code for row in _NUMBERS}
_HOLDERS = {row.name: row.numpy for row in _NUMBERS if row.name != row.numpy}
NAMES = {code: name for name, code in _CODES.items()}
OPS = _fabricshm.OPS

# Values with an index, for minloc and maxloc: C structs of fabricshm.h, padding and all.
_LOCATED = {row.numpy: row.code for row in _fabricshm.DTYPES if row.located}


def located(dtype="float64"):
    """The NumPy type of values with an index, which minloc and maxloc take: fields `value`, of
    `dtype` (float64, float32, int32 or int64), and `index`, int32."""
    name = numpy.dtype(dtype).name
    if name not in _LOCATED:
        raise TypeError(f"no values of {name} with an index; there are {', '.join(_LOCATED)}")
    return numpy.dtype([("value", name), ("index", "int32")], align=True)


_LOCATED_CODES = {f"{name}_int": code for name, code in _LOCATED.items()}
_LOCATED_DTYPES = {f"{name}_int": located(name) for name in _LOCATED}


def type_name(dtype):
    """"float32" from numpy.float32, numpy.dtype("f4"), "float32" or a type of ml_dtypes."""
    if isinstance(dtype, str) and (dtype in _CODES or dtype in _LOCATED_CODES):
        return dtype
    given = numpy.dtype(dtype)
    name = given.name
    if given.names is not None:
        name = next((known for known, each in _LOCATED_DTYPES.items() if each == given), name)
        if name in _LOCATED_CODES:
            return name
    if name not in _CODES:
        raise TypeError(f"the fabric has no element type {name}; it has {', '.join(_CODES)}")
    return name


def type_code(name):
    return _LOCATED_CODES[name] if name in _LOCATED_CODES else _CODES[name]


def storage(dtype):
    """The NumPy type that holds elements of `dtype`."""
    if isinstance(dtype, str) and dtype in _LOCATED_DTYPES:
        return _LOCATED_DTYPES[dtype]
    return numpy.dtype(_HOLDERS.get(dtype, dtype) if isinstance(dtype, str) else dtype)


def op_code(op):
    if op not in OPS:
        raise ValueError(f"there is no operation {op!r}; there are {', '.join(OPS)}")
    return OPS[op]


def bfloat16_from(array):
    """float32 values rounded to nearest even, as uint16 bits of bfloat16."""
    bits = numpy.ascontiguousarray(array, dtype=numpy.float32).view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding must not turn a NaN into infinity.
    return numpy.where(numpy.isnan(array), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)


def bfloat16_to(array):
    """uint16 bits of bfloat16 as float32."""
    bits = numpy.ascontiguousarray(array, dtype=numpy.uint16).astype(numpy.uint32) << 16
    return bits.view(numpy.float32)


class Tensor:
    """An array of a type that NumPy may not have, with DLPack, and a name when peers can open it.

    array: NumPy view of the memory (uint16 for bfloat16, uint8 for floats of 8 bits); dtype: name of the type.
    """

    def __init__(self, array, dtype=None, handle=None):
        self.array = array
        self.dtype = type_name(array.dtype if dtype is None else dtype)
        if storage(self.dtype) != array.dtype and array.dtype.name != self.dtype:
            raise TypeError(f"an array of {array.dtype} does not hold {self.dtype}")
        self._handle = handle

    @property
    def shape(self):
        return self.array.shape

    @property
    def name(self):
        """Its name in the arena; None when it has none."""
        return None if self._handle is None else self._handle.name

    def __array__(self, dtype=None):
        return self.array if dtype is None else self.array.astype(dtype)

    def __dlpack__(self, stream=None, **_):
        if stream is not None:
            raise BufferError("CPU memory has no stream")
        return _fabricshm.to_dlpack(self.array, self.dtype)

    def __dlpack_device__(self):
        return (1, 0)

    def _named(self):
        if self._handle is None:
            raise ValueError("the tensor has no name in an arena")
        return self._handle

    def publish(self):
        """Makes earlier writes visible and raises the version; returns it."""
        return self._named().publish()

    def wait(self, version=1, timeout=None):
        """Waits until the version is at least `version`; returns the one found."""
        return self._named().wait(version, milliseconds(timeout))

    def free(self):
        """Removes a named tensor from the arena. Its array must not be used afterwards."""
        self._named().free()

    def __repr__(self):
        return f"Tensor(name={self.name!r}, dtype={self.dtype!r}, shape={self.shape})"


def from_dlpack(source):
    """A Tensor over the memory of any object with __dlpack__, without a copy."""
    if source.__dlpack_device__()[0] != 1:
        raise BufferError("the fabric's Python module takes CPU tensors")
    array, dtype = _fabricshm.from_dlpack(source.__dlpack__())
    return Tensor(array, dtype or None)


def as_tensor(source, dtype=None):
    """Tensor of an array, a Tensor, or anything with __dlpack__; `dtype` reinterprets an array."""
    if isinstance(source, Tensor):
        return source
    if isinstance(source, numpy.ndarray):
        return Tensor(source, dtype)
    if hasattr(source, "__dlpack__"):
        return from_dlpack(source)
    raise TypeError(f"expected an array, not {type(source).__name__}")


def milliseconds(timeout):
    """Seconds as the library takes them; None: the session's default."""
    return _fabricshm.TIMEOUT_DEFAULT if timeout is None else max(int(timeout * 1000), 1)
