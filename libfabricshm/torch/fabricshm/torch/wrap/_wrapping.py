"""What `fabricrun --wrap` makes of a script for one process: docs/unchanged_scripts.md."""

import functools
import itertools
import math
import os
import pickle
import random
import sys
import time
import weakref
import zlib

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _DatasetKind

from .. import _load
from .._session import open_session
from .._shares import valid_shares
from . import _losses
from ._agreement import BACKWARD, END, EPOCH, EVALUATE, JOIN, LOAD, PULL, SAVE, SAVED, START, Diverged, Ranks, say
from ._merging import Gradients
from ._pieces import CutBatches, PieceIterator, Shares, order_of


class Wrapping:
    """One for the process."""

    def __init__(self, reduction="mean", serving=None, files=None):
        self.serving = serving  # None: allreduce
        self.files = files  # of the job, in the data cache; None: there are none
        self.ranks = Ranks()
        self.gradients = Gradients()
        self.shares = Shares(self.ranks.rank, self.ranks.world)
        self.reduction = reduction
        self.optimisers = []
        self.is_off = False  # the script trains with torch.distributed itself
        self._roots = weakref.WeakSet()  # modules whose parameters() the script asked for
        self._said = set()
        self._loading = False
        self.saw_ignored = False  # a target of this rank's piece that its loss ignores
        self._depth = 0  # of backward() in backward()
        self._batch = None  # the Batch that is trained on
        self._batches_crc = 0
        self._steps = 0  # backwards
        self._session = None
        self._serial = 0  # of the shares in force
        self._began = time.monotonic_ns()

    @property
    def is_on(self):
        return self.ranks.in_use and not self.is_off

    def say_once(self, text):
        if self.ranks.rank == 0 and text not in self._said:
            self._said.add(text)
            say(text)

    def turn_off(self, what):
        """The script is one for several processes. RuntimeError: it was wrapped already."""
        if self.ranks.started:
            raise RuntimeError(f"{what}, after fabricrun --wrap has made it distributed: start it without --wrap")
        self.is_off = True
        self.say_once(f"{what}: --wrap leaves it alone")

    # ---- the model ----

    def note_module(self, module):
        self._roots.add(module)

    def _trained(self):
        """The modules that are trained, in the order of their parameters."""
        chosen = []
        for module in list(self._roots):
            first = next((p for p in module._parameters_of() if self.gradients.has(p)), None)
            if first is not None:
                chosen.append((self.gradients.position(first), module))
        return [module for _, module in sorted(chosen, key=lambda pair: pair[0])]

    def _state(self):
        """Everything that replicas have in common: parameters, then buffers."""
        tensors, seen = [], set()
        buffers = [b for module in self._trained() for b in module.buffers()]
        for tensor in [*self.gradients.parameters, *buffers]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                tensors.append(tensor)
        return tensors

    def checksum(self, tensors):
        value = 0
        for tensor in tensors:
            value = _load().crc32c(tensor.detach().contiguous(), value)
        return value

    def add_optimiser(self, optimiser):
        """An optimiser has been made: its model is trained from here on, with rank 0's values."""
        self.ranks.start()
        if self._session is None:
            self._session = open_session()
        tensors = [tensor for group in optimiser.param_groups for tensor in group["params"]]
        self._look_for_hooks(self.gradients.add(tensors))
        self.optimisers.append(weakref.ref(optimiser))
        self._make_equal(START, self._state())
        self._warn_about(self._trained())
        if self.serving is not None and not self.serving.take(optimiser, self.ranks.rank == 0):
            self.serving = None
        if self.is_apart:
            # Ranks that wait in a step for another one's version have to be let go on first.
            self.ranks.before = self.serving.synchronise

    def _make_equal(self, kind, state):
        """These tensors become rank 0's."""
        shapes = zlib.crc32(repr([(tuple(t.shape), str(t.dtype)) for t in state]).encode())
        rows = self.ranks.agree(kind, len(state), shapes)
        for column, what in enumerate(("the number of parameters", "the shapes of the parameters")):
            self.ranks.equal(rows, column, what)
        with torch.no_grad():
            for tensor in state:
                held = tensor.detach().contiguous()
                dist.broadcast(held, 0)
                if held.data_ptr() != tensor.data_ptr():
                    tensor.copy_(held)
        rows = self.ranks.agree(kind, self.checksum(state))
        self._require_equal(rows, 0, state, "the checksum of the initial parameters")

    def _require_equal(self, rows, column, state, what):
        """Raises on all ranks when the checksums of an event differ, with the ranks and the first tensor of the state
        that rank 0 has otherwise."""
        if all(row[column] == rows[0][column] for row in rows):
            return
        mine = torch.tensor([self.checksum([tensor]) for tensor in state], dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in rows]
        dist.all_gather(found, mine)
        others = [rank for rank, row in enumerate(rows) if row[column] != rows[0][column]]
        # Where no tensor differs, memory has changed again since the event.
        first = min((int(position) for rank in others for position in (found[rank] != found[0]).nonzero().flatten()),
                    default=None)  # fmt: skip
        where = "" if first is None else f", first in {self._name_of(state[first], first)}"
        ranks = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
        raise Diverged(f"{what} of {ranks} and of rank 0 differ{where}")

    def _name_of(self, tensor, position):
        """As the script's model calls it."""
        for module in self._trained():
            for name, each in itertools.chain(module.named_parameters(), module.named_buffers()):
                if each is tensor:
                    return f"{type(module).__name__}.{name} {list(tensor.shape)}"
        return f"tensor {position} {list(tensor.shape)}"

    def has_optimiser(self, optimiser):
        return any(reference() is optimiser for reference in self.optimisers)

    def join(self):
        """Parameters that optimisers have got since they were made are trained from here on, with rank 0's values."""
        held = [optimiser for optimiser in (reference() for reference in self.optimisers) if optimiser is not None]
        tensors = [t for optimiser in held for group in optimiser.param_groups for t in group["params"]]
        if all(self.gradients.has(tensor) for tensor in tensors):
            return
        if self.serving is not None:
            raise RuntimeError("parameters joined an optimiser (add_param_group) that a parameter server has taken: it "
                               "serves those it was made with. Start without --strategy parameter-server")  # fmt: skip
        buffers = {id(buffer) for module in self._trained() for buffer in module.buffers()}
        fresh = self.gradients.add(tensors)
        self._look_for_hooks(fresh)
        modules = self._trained()
        self._make_equal(JOIN, fresh + [b for module in modules for b in module.buffers() if id(b) not in buffers])
        self._warn_about(modules)
        if any(tensor.grad is not None for tensor in fresh):
            self.say_once("parameters that joined an optimiser have gradients of each rank's piece: they are right from "
                          "zero_grad() and the next backward() on")  # fmt: skip

    def _look_for_hooks(self, tensors):
        if any(tensor._backward_hooks for tensor in tensors):
            self.say_of_hook()

    def say_of_hook(self):
        self.say_once("register_hook() of a parameter: the hook sees the gradient of each rank's piece, before it is "
                      "merged. What changes .grad after backward() sees the whole batch's")  # fmt: skip

    @property
    def trains_on_piece(self):
        return self._batch is not None and self.is_on

    @property
    def merges(self):
        """Within backward()."""
        return self._depth > 0

    @property
    def is_apart(self):
        """Whether ranks compute with parameters of their own between two loops."""
        return self.serving is not None and self.serving.staleness > 0

    def _warn_about(self, modules):
        for module in modules:
            if any(isinstance(each, torch.nn.modules.batchnorm._BatchNorm) for each in module.modules()):
                self.say_once("batch normalisation computes over each rank's piece of the batch; running statistics "
                              "are averaged when the model is evaluated or saved")  # fmt: skip

    def average_buffers(self, kind):
        """Running statistics become their mean, where ranks have different ones."""
        buffers = [b for module in self._trained() for b in module.buffers() if b.is_floating_point()]
        rows = self.ranks.agree(kind, self.checksum(buffers))
        if all(row == rows[0] for row in rows):
            return
        for tensor in buffers:
            held = tensor.detach().contiguous()
            dist.all_reduce(held)
            tensor.detach().copy_(held / self.ranks.world)

    def before_evaluation(self, module):
        """model.eval() of a model that is trained."""
        if any(True for _ in module.buffers()) and module in self._trained():
            self.average_buffers(EVALUATE)

    def load(self, original, module, arguments, options):
        """module.load_state_dict(): of parameters that a server has, by all ranks at one time."""
        if not self.is_on or self.serving is None or self._loading or module not in self._trained():
            return original(module, *arguments, **options)
        self.ranks.agree(LOAD)
        self._loading = True
        try:
            loaded = original(module, *arguments, **options)
        finally:
            self._loading = False
        if not self.ranks.ended:
            self.serving.assign()
        return loaded

    # ---- data ----

    def cuts(self, loader):
        """Whether this iteration of the loader is one over training data."""
        if not self.is_on or not self.optimisers or not torch.is_grad_enabled() or get_worker_info() is not None:
            return False
        if loader.__dict__.get("_fabricshm_whole"):
            return False
        modules = self._trained()
        if modules and not any(module.training for module in modules):
            return False
        if loader._dataset_kind == _DatasetKind.Iterable or loader.batch_sampler is None:
            self.say_once("a DataLoader without batches of indices (an IterableDataset, or batch_size=None) is not "
                          "cut: every rank computes what it yields, no faster than one")  # fmt: skip
            return False
        return True

    def iterate(self, loader, make):
        """iter(loader) over this rank's pieces; make() is what iter() was."""
        self._begin_epoch()
        self.shares.begin_loop()
        batches = CutBatches(loader.batch_sampler, self.shares, functools.partial(self._announce, loader),
                             self._part_random)  # fmt: skip
        _resample(loader, batches)
        steps = self._steps

        def finished():
            self._batch = None
            if self.is_apart:
                # What the script decides from here on is of one version on all ranks.
                self._hear_of_ignored(row[0] for row in self.ranks.agree(PULL, self.saw_ignored))
            if self._steps == steps:
                loader.__dict__["_fabricshm_whole"] = True
                self.say_once("a DataLoader was cut though nothing was trained on its batches; from now on every rank "
                              "reads it whole. model.eval() or torch.no_grad() around it says so at once")  # fmt: skip

        loader.__dict__["_fabricshm_cut"] = batches
        try:
            iterator = make(loader)
        finally:
            del loader.__dict__["_fabricshm_cut"]
        return PieceIterator(iterator, batches, self._take, finished)

    def _announce(self, loader):
        """The order in which the ranks are about to read the job's files, if samples are files."""
        if self.files is None:
            return
        order = order_of(loader)
        if order is not None and len(loader.dataset) == len(self.files):
            self.files.announce(order.seed, self.ranks.rank, self.ranks.world)

    def _take(self, batch):
        self._batch = batch
        self._batches_crc = zlib.crc32(batch.crc.to_bytes(4, "little"), self._batches_crc)

    def _begin_epoch(self):
        numpy = sys.modules.get("numpy")
        states = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
        sent = torch.frombuffer(bytearray(pickle.dumps(states)), dtype=torch.uint8)
        # Apart, ranks have the same parameters only once they have compared.
        rows = self.ranks.agree(EPOCH, sent.numel(), 0 if self.is_apart else self.checksum(self._parameters()))
        if not self.is_apart:
            self._require_equal(rows, 1, self._parameters(), "the checksum of the parameters at the start of a loop over training data")
        if self.ranks.rank != 0:
            sent = torch.empty(int(rows[0][0]), dtype=torch.uint8)
        dist.broadcast(sent, 0)
        if self.ranks.rank != 0:
            of_torch, of_python, of_numpy = pickle.loads(sent.numpy().tobytes())
            torch.set_rng_state(of_torch)
            random.setstate(of_python)
            if numpy is not None and of_numpy is not None:
                numpy.random.set_state(of_numpy)

    def _part_random(self):
        # Other masks of dropout on each rank; rank 0 goes on as one process would.
        if self.ranks.rank != 0:
            drawn = int(torch.empty((), dtype=torch.int64).random_())
            torch.manual_seed((drawn + self.ranks.rank) % (1 << 63))

    def _parameters(self):
        return self.gradients.parameters

    # ---- gradients ----

    def backward(self, original, tensors, arguments, options):
        if not self.is_on or self._depth:
            return original(tensors, *arguments, **options)
        self.join()
        self._depth += 1
        self.gradients.begin()
        try:
            original(tensors, *arguments, **options)
        except BaseException:
            self.gradients.cancel()
            raise
        finally:
            self._depth -= 1
        self._merge(tensors, options)

    def _weight(self):
        """(of this rank's gradient in the sum, of this rank's loss in their mean, its samples)."""
        if self._batch is None:
            self.say_once("gradients without a DataLoader's batch: every rank computes the whole, no faster than one")
            return 1 / self.ranks.world, 1 / self.ranks.world, 0
        mine, total = self._batch.counts[self.ranks.rank], sum(self._batch.counts)
        return (mine and 1.0) if self.reduction == "sum" else mine / total, mine / total, mine

    def _merge(self, tensors, options):
        computed = time.monotonic_ns() - self._began
        positions, arrived_crc = self.gradients.arrived()
        if not positions and not self.gradients.parameters:
            return self.gradients.cancel()
        weight, part, samples = self._weight()
        loss = _loss_of(tensors)
        if self.is_apart:  # each rank goes on by itself
            self.serving.note(part)
            self.gradients.merge(positions, weight, sums=False)
            self._steps += 1
            return
        value = loss.item() if loss is not None and part else 0.0
        factor = (1.0 if weight else 0.0) if self.reduction == "sum" else part
        directives = self._session.read() if self._session is not None else None
        serial = directives.serial if directives is not None else 0
        rows = self.ranks.agree(BACKWARD, arrived_crc, value * factor if factor else 0.0, self._batches_crc,
                                self._settings_crc(), self.shares.drawn, serial, self.saw_ignored)  # fmt: skip
        self._hear_of_ignored(row[6] for row in rows)
        self.ranks.equal(rows, 2, "the batches that were drawn")
        self.ranks.equal(rows, 3, "the settings of the optimisers (learning rates)")
        if any(row[0] != arrived_crc for row in rows):
            positions = self.gradients.union(positions)
        self.gradients.merge(positions, weight, sums=self.serving is None)
        if loss is not None and not options.get("retain_graph") and not options.get("create_graph"):
            # The script reads the loss of the whole batch, the same on all ranks.
            loss.data.fill_(math.fsum(row[1] for row in rows))
        self._steps += 1
        self._batches_crc = 0
        self._follow(rows, directives)
        if self._session is not None:
            self._session.report(samples=samples, loss=value if loss is not None and part else math.nan,
                                 gradient_norm=math.nan, mean_gradient_norm=math.nan, compute_ns=computed, queue=0)  # fmt: skip
        self._began = time.monotonic_ns()

    def _hear_of_ignored(self, seen):
        # They may be in the piece of one rank alone.
        if any(seen):
            self.say_once(_losses.IGNORED)

    def _settings_crc(self):
        found = []
        for reference in self.optimisers:
            optimiser = reference()
            if optimiser is not None:
                found += [sorted((k, repr(v)) for k, v in group.items() if k != "params" and not torch.is_tensor(v))
                          for group in optimiser.param_groups]  # fmt: skip
        return zlib.crc32(repr(found).encode())

    def _follow(self, rows, directives):
        """New shares of rank 0 hold from the first batch that no rank has cut."""
        serial = int(rows[0][5])
        if serial in (0, self._serial):
            return
        self._serial = serial
        world = self.ranks.world
        sent = torch.zeros(world, dtype=torch.float64)
        if self.ranks.rank == 0:
            found = valid_shares(directives.batch_share, world)
            if found is not None:
                sent = torch.tensor(found, dtype=torch.float64)
        dist.broadcast(sent, 0)
        if sent.sum() > 0:
            self.shares.plan.change(int(max(row[4] for row in rows)), sent.tolist())

    # ---- checkpoints and the end ----

    def save(self, original, value, file, arguments, options):
        """torch.save() to a file: by rank 0; no rank goes on before it is written."""
        to_file = isinstance(file, (str, os.PathLike)) or isinstance(getattr(file, "name", None), (str, bytes, int))
        if not to_file or self.is_off or get_worker_info() is not None:
            return original(value, file, *arguments, **options)
        if not self.is_on:
            return original(value, file, *arguments, **options) if self.ranks.rank == 0 else None
        self.average_buffers(SAVE)
        if self.ranks.rank == 0:
            original(value, file, *arguments, **options)
        self.ranks.agree(SAVED)

    def finish(self):
        """The script has ended well."""
        if not self.is_on:
            return
        self.ranks.agree(END)
        if self.serving is not None and not self.ranks.ended:
            self.serving.close()


def _resample(loader, batches):
    """An iterator whose workers persist draws from these batches when it begins again."""
    if loader._iterator is not None:
        loader._iterator._index_sampler = batches


def _loss_of(tensors):
    """The loss that backward() was called on; None: it is no single number."""
    one = tensors if isinstance(tensors, torch.Tensor) else tensors[0] if len(tensors) == 1 else None
    return one if one is not None and one.numel() == 1 else None


def _patch(owner, name):
    """Decorator: replaces owner.name by the function, which has the original as its first argument."""
    original = getattr(owner, name)

    def install(function):
        @functools.wraps(original)
        def replaced(*arguments, **options):
            return function(original, *arguments, **options)

        setattr(owner, name, replaced)
        return replaced

    return install


def install(wrapping):
    """Puts it between the script and torch."""
    _install_model(wrapping)
    _install_data(wrapping)
    _install_training(wrapping)
    _losses.install(wrapping)


def _install_model(wrapping):
    module_class = torch.nn.Module
    module_class._parameters_of = module_class.parameters

    @_patch(module_class, "parameters")
    def parameters(original, module, recurse=True):
        wrapping.note_module(module)
        return original(module, recurse)

    @_patch(module_class, "named_parameters")
    def named_parameters(original, module, *arguments, **options):
        wrapping.note_module(module)
        return original(module, *arguments, **options)

    @_patch(module_class, "load_state_dict")
    def load_state_dict(original, module, *arguments, **options):
        return wrapping.load(original, module, arguments, options)

    @_patch(module_class, "eval")
    def evaluate(original, module):
        if wrapping.is_on:
            wrapping.before_evaluation(module)
        return original(module)


def _install_data(wrapping):
    original_sampler = DataLoader._index_sampler.fget

    def index_sampler(loader):
        cut = loader.__dict__.get("_fabricshm_cut")
        return original_sampler(loader) if cut is None else cut

    DataLoader._index_sampler = property(index_sampler)

    @_patch(DataLoader, "__iter__")
    def iterate(original, loader):
        if wrapping.cuts(loader):
            return wrapping.iterate(loader, original)
        _resample(loader, loader._index_sampler)
        return original(loader)

    @_patch(torch, "save")
    def save(original, obj, f, *arguments, **options):
        return wrapping.save(original, obj, f, arguments, options)


def _install_training(wrapping):
    @_patch(torch.optim.Optimizer, "__init__")
    def make(original, optimiser, *arguments, **options):
        original(optimiser, *arguments, **options)
        if type(optimiser).__module__.startswith("fabricshm.") and not wrapping.is_off:
            wrapping.turn_off("the script shares its parameters itself")
        if not wrapping.is_off:
            wrapping.add_optimiser(optimiser)

    @_patch(torch.optim.Optimizer, "add_param_group")
    def add_param_group(original, optimiser, *arguments, **options):
        original(optimiser, *arguments, **options)
        # It is called while an optimiser is made, too.
        if wrapping.is_on and wrapping.has_optimiser(optimiser):
            wrapping.join()

    @_patch(torch.Tensor, "register_hook")
    def register_hook(original, tensor, hook):
        if wrapping.is_on and not wrapping.merges and wrapping.gradients.has(tensor):
            wrapping.say_of_hook()
        return original(tensor, hook)

    @_patch(torch.autograd, "backward")
    def backward(original, tensors, *arguments, **options):
        return wrapping.backward(original, tensors, arguments, options)

    @_patch(dist, "init_process_group")
    def init_process_group(original, *arguments, **options):
        ours = sys._getframe(2).f_globals.get("__name__", "").startswith(__package__)
        if not ours:
            wrapping.turn_off("the script calls torch.distributed itself")
        return original(*arguments, **options)

    @_patch(torch.nn.modules.loss._Loss, "__init__")
    def make_loss(original, loss, *arguments, **options):
        original(loss, *arguments, **options)
        if loss.reduction == "sum" and wrapping.reduction != "sum":
            wrapping.say_once(_losses.SUM)
