"""Session, Arena and Group."""

import math

import numpy

from . import _fabricshm, _symmetric
from ._arrays import Tensor, as_tensor, milliseconds, op_code, storage, type_code, type_name, NAMES
from ._shards import Shard

ALGORITHMS = {"auto": 0, "flat": 1, "direct": 2, "ring": 3, "staged": 4, "host": 5}
TRIGGERS = {"async": 0, "sync": 1}


def launch():
    """Rank, world and places of this process, as torchrun, fabricrun, mpirun or srun set them.

    .rank and .world; .local_rank, .local_world, .node and .nodes, each None where the launcher does
    not say; .launcher. NotFoundError: there was no launcher. InvalidArgumentError: the variable it
    names is wrong, or two launchers contradict each other.
    """
    return _fabricshm.launch()


def _number(table, name, what):
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}; there are {', '.join(table)}")
    return table[name]


class _Closing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Session(_Closing):
    """A connection to the fabricd of this host.

    socket: path; by default $FABRIC_SOCKET, then the usual places. timeout: seconds, of every
    later call that waits. label: what `fabricctl sessions` shows. device: what this process computes
    on, whose memory quota its arrays count against; by default $FABRIC_DEVICE, else none.
    """

    def __init__(self, socket=None, timeout=30.0, label=None, device=None):
        self._handle = _fabricshm.Session(socket, milliseconds(timeout), label, device)

    def arena(self, name, bytes=0, exclusive=False, local=False):
        """Opens the arena `name`, making it with `bytes` (0: the daemon's default) if need be.
        local: in the host's ordinary memory, however far the pool is."""
        return Arena(self._handle.open_arena(name, bytes, exclusive, local), name)

    def step(self, samples=0, loss=None, gradient_norm=None, mean_gradient_norm=None,
             compute=None, queue=0, group=None):  # fmt: skip
        """Ends a step of training: call it once after each. Never waits for the daemon.

        samples: that this rank's step was made of. gradient_norm: of this rank's gradient,
        mean_gradient_norm: of the merged one. compute: seconds of forward and backward; None: what
        is left of the time since the last call. queue: units of work that wait. group: whose ranks
        train together; None: as in the last call.
        """
        unknown = math.nan
        self._handle.step(
            samples,
            unknown if loss is None else float(loss),
            unknown if gradient_norm is None else float(gradient_norm),
            unknown if mean_gradient_norm is None else float(mean_gradient_norm),
            -1 if compute is None else round(compute * 1e9),
            queue,
            None if group is None else group._handle,
        )

    def directives(self):
        """What the daemon asks for, or None when it has asked for nothing yet. Never waits.

        .serial rises with every change. .sync_interval: 0 is not set. .batch_share and .work_units:
        lists by rank of the group .group_id, all 0 is not set. Ranks read at different moments: let
        rank 0 read and broadcast where all have to act alike.
        """
        directive = self._handle.directives()
        return directive if directive.serial else None

    def quotas(self):
        """What may be held of the pool, or None when the daemon has not said yet. Never waits.

        .device: by all sessions of this session's device, .user: by all of its user. Each has
        .limit_bytes and .target_bytes (None: no limit), .used_bytes and .seconds_left. A target below
        its limit: it shrinks. Nothing is granted beyond the target any more, and when the seconds
        are over the limit is cut, never below what is in use. .serial rises with every change.
        """
        quota = self._handle.quotas()
        return quota if quota.serial else None

    def hosts(self):
        """The hosts of the daemon's cluster, as `fabricctl hosts` shows them. Asks the daemon.

        .admits: groups over several hosts may be made now. .hosts: a list by name, the newest
        incarnation of each first; empty: the daemon is in no cluster. Each has .name, .incarnation,
        .state ("up", "back", "suspect", "lost", "fenced", or "listed", of which nothing is known),
        .seconds in that state, .own (the place of this daemon), .newest, and .fence: None, what a
        lost one waits for ("person", "command", "failed"), or how a fenced one was ("by command",
        "by boot", "by self", "by leaving", "by operator", "by other").
        """
        return self._handle.hosts()

    def close(self):
        """Closes it with its arenas and groups. Memory goes with the last array over it."""
        self._handle.close()

    @property
    def closed(self):
        return self._handle.closed


class Arena(_Closing):
    """The memory of a job, shared by its processes."""

    def __init__(self, handle, name):
        self._handle = handle
        self.name = name

    @property
    def bytes(self):
        return self._handle.bytes

    def __contains__(self, array):
        return self._handle.contains(as_tensor(array).array)

    def empty(self, shape, dtype="float32"):
        """A NumPy array in the arena: collectives use it in place. Freed with its last view.

        Of any NumPy type but objects. "bfloat16" gives an array of uint16: say dtype="bfloat16" to
        the collectives too.
        """
        holder = storage(dtype)
        if holder.hasobject:
            raise TypeError("objects are not shared by sharing their addresses")
        shape = (shape,) if numpy.isscalar(shape) else tuple(shape)
        block = self._handle.allocate(math.prod(shape) * holder.itemsize)
        return block.view(holder).reshape(shape)

    def zeros(self, shape, dtype="float32"):
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def copy(self, source):
        """A copy of an array in the arena."""
        source = numpy.asarray(source)
        array = self.empty(source.shape, source.dtype)
        array[...] = source
        return array

    def create_tensor(self, name, shape, dtype="float32"):
        """A tensor that peers open by name. It is not cleared; publish() it once it is written."""
        shape = [shape] if numpy.isscalar(shape) else list(shape)
        return self._tensor(self._handle.create_tensor(name, type_code(type_name(dtype)), shape))

    def open_tensor(self, name, timeout=None):
        """The tensor `name`, waiting for a peer to make it."""
        return self._tensor(self._handle.open_tensor(name, milliseconds(timeout)))

    def free_parameters(self, name):
        """Ends the set of parameters `name` for all ranks, which have closed it."""
        _fabricshm.free_parameters(self._handle, name)

    def create_shard(self, name, shape, dtype="float32"):
        """A named tensor that fabricd may move while peers read it. Not cleared."""
        shape = [shape] if numpy.isscalar(shape) else list(shape)
        code = type_code(type_name(dtype))
        return Shard(self._handle.create_shard(name, code, shape), name)

    def open_shard(self, name, timeout=None):
        """The shard `name`, waiting for a peer to make it."""
        return Shard(self._handle.open_shard(name, milliseconds(timeout)), name)

    @staticmethod
    def _tensor(handle):
        dtype = NAMES[handle.dtype]
        array = handle.array.view(storage(dtype)).reshape(handle.shape)
        return Tensor(array, dtype, handle)

    def create_region(self, bytes):
        """Raw bytes that peers open by id: .array, .id, .free()."""
        return self._handle.create_region(bytes)

    def open_region(self, id):
        return self._handle.open_region(id)

    def join(self, name, rank=None, world=1, timeout=None, exchange=None, trusted=None):
        """Joins group `name` of `world` ranks; rank None: the daemon assigns one.

        exchange: for ranks that may be on several hosts: a function of bytes that returns those of
        all ranks, in their order; it is called by all ranks. trusted: the networks that may be used
        between them, as "10.0.0.0/8"; None: $FABRIC_NET_TRUSTED. docs/hosts.md of the project.
        """
        if exchange is not None:
            if rank is None:
                raise ValueError("an exchange is between ranks that have numbers: say rank")
            return Group(self._handle.join_hosts(name, rank, world, exchange, trusted,
                                                 milliseconds(timeout)))
        if trusted is not None:
            raise ValueError("a network is for ranks with an exchange")
        rank = _fabricshm.ANY_RANK if rank is None else rank
        return Group(self._handle.join(name, rank, world, milliseconds(timeout)))

    def close(self):
        """Leaves its groups and closes it. Memory goes with the last array over it."""
        self._handle.close()


class Group(_Closing):
    """Ranks that run collectives together.

    Every collective takes C-contiguous arrays (NumPy, Tensor, or anything with DLPack on the CPU)
    and these options:

        op          sum avg min max prod; on integers band bor bxor land lor lxor; on values with
                    an index (located()) minloc maxloc
        dtype       to read uint16 arrays as "bfloat16", and uint8 as floats of 8 bits
        timeout     seconds
        algorithm   auto flat direct ring staged host
        trigger     async, or sync: rank 0 starts it when all are ready
        shared_output  True: all ranks pass the same output, in the arena, which is written once
                    (allreduce, broadcast, all_gather); a rank that writes there afterwards first
                    waits until the others have read it, by a barrier for example
        async_op    True: return a Request at once; its arrays must stay untouched until wait()

    Blocking calls return the output array.
    """

    def __init__(self, handle):
        self._handle = handle

    @property
    def rank(self):
        return self._handle.rank

    @property
    def world(self):
        return self._handle.world

    @property
    def hosts(self):
        """How many hosts the ranks are on."""
        return self._handle.hosts

    @property
    def id(self):
        """The daemon's number of the group, as in Session.directives().group_id."""
        return self._handle.id

    def all_reduce(self, array, op="sum", out=None, **options):
        """The reduction of all ranks' arrays, on every rank; in place without `out`."""
        data = as_tensor(array, options.get("dtype"))
        result = data if out is None else self._alike(out, data, data.array.size)
        return self._do("allreduce", data, result, data.array.size, op=op, **options)

    def allreduce_symmetric(
        self, array, method="packed", out=None, max_error=0.0, algorithm="auto", timeout=None
    ):
        """The sum of all ranks' symmetric matrices, on every rank, for half the bytes; in place
        without `out`. Returns a SymmetricSum: the array, and how it was made.

        array: n x n, float32 or float64. Its lower triangle is read; the sum has both.
        method: "packed" sends triangles and is exact. "cholesky" sends factors of positive definite
        matrices, and goes as "packed" where a rank has none, or one with a larger error than
        `max_error` (0: any). docs/symmetric.md of the project.
        """
        data = as_tensor(array)
        size = _symmetric.size_of(data.array.shape) ** 2
        result = data if out is None else self._alike(out, data, size)
        return _symmetric.run(
            self._handle, data, result, method, _number(ALGORITHMS, algorithm, "algorithm"), max_error, timeout
        )

    def broadcast(self, array, root=0, **options):
        """The root's array, on every rank."""
        data = as_tensor(array, options.get("dtype"))
        return self._do("broadcast", data, data, data.array.size, root=root, **options)

    def reduce(self, array, root=0, op="sum", out=None, **options):
        """The reduction, at the root; in place there without `out`."""
        data = as_tensor(array, options.get("dtype"))
        if self.rank != root:
            return self._do("reduce", data, None, data.array.size, root=root, op=op, **options)
        result = data if out is None else self._alike(out, data, data.array.size)
        return self._do("reduce", data, result, data.array.size, root=root, op=op, **options)

    def all_gather(self, array, out=None, counts=None, **options):
        """All ranks' arrays, in rank order, on every rank."""
        data = as_tensor(array, options.get("dtype"))
        out = self._parts(data, out, counts)
        return self._do("all_gather", data, out, data.array.size, counts=counts, **options)

    def gather(self, array, root=0, out=None, counts=None, **options):
        """All ranks' arrays, in rank order, at the root."""
        data = as_tensor(array, options.get("dtype"))
        out = self._parts(data, out, counts) if self.rank == root else None
        count = data.array.size
        return self._do("gather", data, out, count, root=root, counts=counts, **options)

    def scatter(self, out, array=None, root=0, counts=None, **options):
        """Part `rank` of the root's array, in `out`."""
        result = as_tensor(out, options.get("dtype"))
        data = None
        if self.rank == root:
            total = sum(counts) if counts else result.array.size * self.world
            data = self._alike(array, result, total)
        count = result.array.size
        return self._do("scatter", data, result, count, root=root, counts=counts, **options)

    def reduce_scatter(self, array, op="sum", out=None, counts=None, **options):
        """Part `rank` of the reduction of all ranks' arrays."""
        data = as_tensor(array, options.get("dtype"))
        count = self._share(data.array.size, counts)
        if out is None:
            out = Tensor(numpy.empty(count, data.array.dtype), data.dtype)
        out = self._alike(out, data, count)
        return self._do("reduce_scatter", data, out, count, op=op, counts=counts, **options)

    def all_to_all(self, array, out=None, counts=None, recv_counts=None, **options):
        """Part p of the array to rank p; what the ranks sent, in rank order."""
        data = as_tensor(array, options.get("dtype"))
        size = sum(recv_counts) if recv_counts is not None else data.array.size
        if out is None:
            shape = data.array.shape if size == data.array.size else (size,)
            out = Tensor(numpy.empty(shape, data.array.dtype), data.dtype)
        out = self._alike(out, data, size)
        count = data.array.size // self.world
        both = {"counts": counts, "recv_counts": recv_counts}
        return self._do("all_to_all", data, out, count, **both, **options)

    def scan(self, array, op="sum", out=None, **options):
        """The reduction of the arrays of ranks 0 to this one; in place without `out`."""
        data = as_tensor(array, options.get("dtype"))
        result = data if out is None else self._alike(out, data, data.array.size)
        return self._do("scan", data, result, data.array.size, op=op, **options)

    def exscan(self, array, op="sum", out=None, **options):
        """As scan(), without this rank's own array. At rank 0 the output stays as it is."""
        data = as_tensor(array, options.get("dtype"))
        result = data if out is None else self._alike(out, data, data.array.size)
        return self._do("exscan", data, result, data.array.size, op=op, **options)

    def barrier(self, **options):
        """Returns when all ranks have called it."""
        self._check_divisible(0)
        return self._do("barrier", None, None, 0, **options)

    def send(self, array, to, tag=0, **options):
        """Sends the array to rank `to`."""
        data = as_tensor(array, options.get("dtype"))
        return self._do("send", data, None, data.array.size, peer=to, tag=tag, **options)

    def recv(self, out, source=None, tag=0, **options):
        """Fills `out` from rank `source`, or from the rank that sends first.

        Blocking: returns the rank that sent. With async_op, Request.peer has it after wait().
        """
        result = as_tensor(out, options.get("dtype"))
        peer = _fabricshm.ANY_PEER if source is None else source
        if options.pop("async_op", False):
            return self._do(
                "recv", None, result, result.array.size, peer=peer, tag=tag, async_op=True, **options
            )
        count = result.array.size
        request = self._do(
            "recv", None, result, count, peer=peer, tag=tag, async_op=True, **options
        )
        request.wait()
        return request.peer

    def shrink(self, timeout=None):
        """A new group of the members that are alive and call this too, after a failure."""
        return Group(self._handle.shrink(milliseconds(timeout)))

    def quiesce(self, timeout=None):
        """After a failure: waits until no peer stores into arrays of this rank any more. The group
        stays broken. Raises FabricTimeoutError naming a rank that may still do so."""
        self._handle.quiesce(milliseconds(timeout))

    def leave(self):
        """Leaves it. Not a collective: others may still be in their last operation."""
        self._handle.leave()

    close = leave

    def _check_divisible(self, size):
        if size % self.world != 0:
            raise ValueError(f"{size} elements do not divide into {self.world} parts; give counts")

    def _share(self, size, counts):
        if counts is not None:
            return counts[self.rank]
        self._check_divisible(size)
        return size // self.world

    def _parts(self, data, out, counts):
        total = data.array.size * self.world if counts is None else sum(counts)
        if out is None:
            shape = (self.world, *data.array.shape) if counts is None else (total,)
            out = Tensor(numpy.empty(shape, data.array.dtype), data.dtype)
        return self._alike(out, data, total)

    @staticmethod
    def _alike(source, model, size):
        tensor = as_tensor(source, model.dtype if isinstance(source, numpy.ndarray) else None)
        if tensor.dtype != model.dtype:
            raise TypeError(f"the arrays are {model.dtype} and {tensor.dtype}")
        if tensor.array.size != size:
            raise ValueError(f"expected {size} elements, not {tensor.array.size}")
        return tensor

    def _do(
        self, kind, data, out, count, op="sum", root=0, peer=0, tag=0, counts=None,
        recv_counts=None, dtype=None, timeout=None, algorithm="auto", trigger="async",
        async_op=False, shared_output=False,
    ):  # fmt: skip
        call = _fabricshm.Call()
        call.kind = _fabricshm.KINDS[kind]
        some = data if data is not None else out
        call.dtype = type_code(some.dtype) if some is not None else type_code("uint8")
        call.input = data.array if data is not None else None
        call.output = out.array if out is not None else None
        call.count = count
        call.op, call.root, call.peer, call.tag = op_code(op), root, peer, tag
        call.algorithm = _number(ALGORITHMS, algorithm, "algorithm")
        call.trigger = _number(TRIGGERS, trigger, "trigger")
        call.timeout_ms = milliseconds(timeout)
        call.flags = 1 if shared_output else 0  # FABRICSHM_SHARED_OUTPUT
        call.counts, call.recv_counts = counts, recv_counts
        if async_op:
            return self._handle.start(call)
        self._handle.run(call)
        return None if out is None else out.array
