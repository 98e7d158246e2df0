"""What the fabric raises."""


class FabricError(Exception):
    """An operation of the fabric failed.

    code: the FABRICSHM_E* number, name: its identifier, rank: the rank it names, or -1.
    docs/errors.md says what to do about each code.
    """

    def __init__(self, message, code=0, name="", rank=-1):
        super().__init__(message)
        self.code = code
        self.name = name
        self.rank = rank

    def __reduce__(self):
        return type(self), (str(self), self.code, self.name, self.rank)


class FabricTimeoutError(FabricError, TimeoutError):
    """The deadline passed."""


class PeerError(FabricError):
    """A peer died; `rank` says which. The group is broken: shrink() it or leave() it."""


class MismatchError(FabricError):
    """Ranks called different operations; `rank` says which one differs."""


class BrokenGroupError(FabricError):
    """The group failed earlier: shrink() it or leave() it."""


class PoisonedError(FabricError):
    """The hardware lost a page of a buffer; the text names the region. Free it and make another."""


class FileChangedError(FabricError):
    """The file has another version by now: open() the set again."""


class DaemonError(FabricError, ConnectionError):
    """fabricd is gone or does not answer."""


class DeniedError(FabricError, PermissionError):
    """This user may not."""


class OutOfMemoryError(FabricError, MemoryError):
    """Pool, quota or arena is full."""


class NotFoundError(FabricError, LookupError):
    """There is no such object."""


class ExistsError(FabricError):
    """The name or the rank is taken."""


class InvalidArgumentError(FabricError, ValueError):
    """An argument is out of its range."""


class ClosedError(FabricError):
    """It is closed, or belongs to the parent of a fork."""


_CLASSES = {
    "FABRICSHM_EINVAL": InvalidArgumentError,
    "FABRICSHM_ENOENT": NotFoundError,
    "FABRICSHM_EEXIST": ExistsError,
    "FABRICSHM_ETIMEOUT": FabricTimeoutError,
    "FABRICSHM_EPEER": PeerError,
    "FABRICSHM_EDAEMON": DaemonError,
    "FABRICSHM_ENOMEM": OutOfMemoryError,
    "FABRICSHM_EDENIED": DeniedError,
    "FABRICSHM_EMISMATCH": MismatchError,
    "FABRICSHM_ECLOSED": ClosedError,
    "FABRICSHM_EBROKEN": BrokenGroupError,
    "FABRICSHM_EPOISONED": PoisonedError,
    "FABRICSHM_ECHANGED": FileChangedError,
}


def make_error(code, name, rank, text):
    """The exception for a code of the C ABI."""
    message = f"{text} ({name})" if text else name
    if name == "FABRICSHM_EPEER" and rank >= 0:
        message = f"rank {rank} died: {message}"
    return _CLASSES.get(name, FabricError)(message, code, name, rank)
