"""Parameters in several sets, which are stepped while backward still works on the others. docs/optimisers.md.

A bucket is a set of its own, with its own words: a death leaves each bucket done by all or begun by none,
as it leaves a set. The buckets follow each other against the order of the parameters, as backward
does, and on all ranks alike; one thread steps them one after the other.

What autograd hands over is complete: an AccumulateGrad node comes after all nodes that read its parameter
and have a gradient for it. A bucket is stepped once it is complete on all ranks, so that no rank's
backward reads values that move.
"""

import concurrent.futures
import os

import torch

from ._errors import ClosedError, PeerError
from ._parameters import HYPER
from ._shared import SharedParameters


def cut(tensors, bytes):
    """Positions of the tensors of each bucket, last ones first: at least `bytes` of parameters in each
    but the last bucket."""
    buckets, held = [[]], 0
    for position in reversed(range(len(tensors))):
        if held >= bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(position)
        held += tensors[position].numel() * tensors[position].element_size()
    return buckets


def _values(hyper):
    return tuple(getattr(hyper, name) for name in HYPER)


class BucketedParameters:
    """Does for an optimiser what SharedParameters does, by buckets. `start(options)` comes first."""

    has_views = True

    def __init__(self, tensors, group, rule, name, options, timeout, arena=None,
                 bucket_bytes=4 << 20):  # fmt: skip
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is {bucket_bytes}, not 1 or more")
        self.rule = rule
        self._process = os.getpid()
        self.tensors = list(tensors)
        self.gradients = [None] * len(self.tensors)
        self.states = [None] * len(self.tensors)
        self._buckets, self._nodes = [], []
        for number, positions in enumerate(cut(self.tensors, bucket_bytes)):
            bucket = SharedParameters([self.tensors[i] for i in positions], group, rule, f"{name}.{number}",
                                      [options[i] for i in positions], timeout, arena)  # fmt: skip
            arena = bucket.set.arena  # of several the first bucket's choice, for all
            self._buckets.append(bucket)
            for i, gradient, states in zip(positions, bucket.gradients, bucket.states):
                self.gradients[i], self.states[i] = gradient, states
                self._watch(i, number)
        if len({bucket.steps for bucket in self._buckets}) != 1:
            raise ValueError(f"{name!r} was left between two of its buckets: free_parameters() each, and load them")
        self._timeout = timeout
        self._options_now = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "fabricshm-step")
        self._forget()

    def start(self, options):
        """options(): what moves the parameters, asked for when the first gradient is there."""
        self._options_now = options

    def _forget(self):
        self._begun = None  # the options of the step that has begun
        self._target = None  # steps of each bucket once it is done
        self._arrived = set()  # tensors, by position
        self._handed = []  # of each bucket handed over, what becomes of it
        self._versions = []  # of the gradients that were
        self._left = [len(bucket.tensors) for bucket in self._buckets]
        self._failed = False

    def _watch(self, position, number):
        tensor = self.tensors[position]
        # Kept: it exists as long as something refers to it, and with it the hook.
        with torch.enable_grad():
            node = tensor.view_as(tensor).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_: self._arrive(position, number))
        self._nodes.append(node)

    @torch.no_grad()
    def _arrive(self, position, number):
        self._check_process()
        if position in self._arrived:
            raise RuntimeError("with overlap a step has one backward; its second one would change gradients "
                               "that the ranks are reading")  # fmt: skip
        self._arrived.add(position)
        self._left[number] -= 1
        while len(self._handed) < len(self._buckets) and self._left[len(self._handed)] == 0:
            self._hand_over()

    def _hand_over(self):
        if self._begun is None:
            self._begin()
        bucket = self._buckets[len(self._handed)]
        bucket.gather_gradients()
        self._versions += [(gradient, gradient._version) for gradient in bucket.gradients]
        self._handed.append(self._thread.submit(self._step_in_thread, bucket))

    def _begin(self):
        self._begun = self._options_now()
        self._target = self.steps + 1

    def _step_in_thread(self, bucket):
        if self._failed:  # the other ranks do not come to the buckets that follow
            return None
        try:
            return self._step_one(bucket)
        except BaseException:
            self._failed = True
            raise

    def _step_one(self, bucket):
        # A bucket is ahead when this step, or one before it, failed behind it: on all ranks.
        if bucket.steps >= self._target:
            return None
        return bucket.step(self._begun, None, 1.0, None, False, self._timeout)

    @property
    def is_begun(self):
        return self._begun is not None or bool(self._arrived)

    @property
    def group(self):
        return self._buckets[0].group

    @group.setter
    def group(self, group):
        for bucket in self._buckets:
            bucket.group = group

    @property
    def steps(self):
        return min(bucket.steps for bucket in self._buckets)

    @steps.setter
    def steps(self, count):
        for bucket in self._buckets:
            bucket.steps = count

    def gather_gradients(self):
        """Hands over all buckets that backward has not completed."""
        while len(self._handed) < len(self._buckets):
            self._hand_over()

    def _check_process(self):
        if os.getpid() != self._process:  # which has the thread that steps
            raise ClosedError("the optimiser is the parent's, before a fork")

    def check(self, options):
        """What was changed after it was handed over would be ignored. The step is ended by another call."""
        self._check_process()
        if self._begun is None:
            return
        if any(_values(now) != _values(then) for now, then in zip(options, self._begun)):
            raise ValueError("a hyperparameter was changed between backward and step(): with overlap the step "
                             "begins with the first gradient")  # fmt: skip
        versions, self._versions = self._versions, []
        if any(gradient._version != version for gradient, version in versions):
            concurrent.futures.wait(self._handed)  # the group is quiet then
            raise ValueError("a gradient was changed between backward and step() (clip_grad_norm_, say): with "
                             "overlap it is handed over as backward leaves it. step() again ends the step so")  # fmt: skip

    def step(self, options, *_):
        """Waits for the buckets; again after a failure: steps those that are not done."""
        self._check_process()
        if not self._handed:
            return [self._step_one(bucket) for bucket in self._buckets][-1]
        handed, self._handed = self._handed, []
        concurrent.futures.wait(handed)
        self._failed = False
        for future in handed:
            error = future.exception()
            if error is not None:
                if not isinstance(error, PeerError):  # which is followed by another attempt at this step
                    self._forget()
                raise error
        return handed[-1].result()

    def recover(self, group, timeout):
        """As Parameters.recover(), of all buckets: True when each of them is done."""
        for bucket in self._buckets:
            bucket.recover(group, timeout)
        return self.steps == self._target

    def snapshot(self, directory, keep, **options):
        raise ValueError("with overlap there are several sets, and no snapshot of all at one step: "
                         "save state_dict()")  # fmt: skip

    def restore(self, path, timeout):
        raise ValueError("with overlap there are several sets, and a snapshot is of one: load_state_dict()")

    def settle(self):
        self._forget()

    def load_all(self, loaded):
        for states, values in zip(self.states, loaded):
            self._buckets[0].load(states, values)

    def close(self):
        """All sets."""
        for bucket in self._buckets:
            bucket.set.close()
