"""The strategy parameter-server: a parameter server does the steps of a script's optimisers."""

import contextlib
import math
import types

import fabricshm

from ._agreement import say

_TIMEOUT = 1800.0  # seconds, as of torch.distributed's own operations


@contextlib.contextmanager
def _rates_times(part, optimiser):
    rates = [group["lr"] for group in optimiser.param_groups]
    try:
        for group in optimiser.param_groups:
            group["lr"] = group["lr"] * part
        yield
    finally:
        for group, rate in zip(optimiser.param_groups, rates):
            group["lr"] = rate


class Serving:
    """Servers of the script's optimisers, all with one staleness."""

    def __init__(self, staleness):
        self.staleness = staleness
        self.servers = []
        self._parts = []  # of each batch since the last step

    def take(self, optimiser, is_first):
        """From here on optimiser.step() is the server's. False: none can do its steps."""
        if self.staleness and self.servers:
            # A rank that waits in a step of one server would never come to where the other one is waited for.
            raise RuntimeError("--staleness is for a script that makes one optimiser, and this is its second one: "
                               "start it without --staleness")  # fmt: skip
        try:
            server = fabricshm.ParameterServer(optimizer=optimiser, staleness=self.staleness, timeout=_TIMEOUT,
                                               name=f"server{len(self.servers)}")  # fmt: skip
        except (ValueError, TypeError) as error:
            if self.staleness:
                raise
            if is_first:
                say(f"{error}; gradients are merged by allreduce instead")
            return False
        self.servers.append(server)
        # What gets no gradient has none, as in one process, and is not stepped.
        server.zero_grad(set_to_none=True)

        def step(_optimiser, closure=None):
            loss = None if closure is None else closure()
            # Weights are in the gradients already.
            if not self.staleness:
                server.step(weight=1.0)
                return loss
            # Each rank's gradient is a step of its own. Adam makes its length by the learning rate alone, and decay
            # takes its part each time: so the rate is cut by the pieces, as the batch is, and the gradient is whole.
            part = math.fsum(self._parts) / len(self._parts) if self._parts else 1.0
            self._parts.clear()
            with _rates_times(part, optimiser):
                server.step(weight=1.0 / part if part else 1.0)
            return loss

        optimiser.step = types.MethodType(step, optimiser)
        return True

    def note(self, part):
        """The gradient that the next step moves by is of so much of a batch."""
        self._parts.append(part)

    def synchronise(self):
        """By all ranks, wherever they are in the script: all have the same parameters then."""
        for server in self.servers:
            server.synchronise()

    def assign(self):
        """By all ranks, after the script has loaded parameters on each of them."""
        for server in self.servers:
            server.assign()

    def close(self):
        """By all ranks, at the end of the script."""
        for server in self.servers:
            server.close()
