"""The integration's side of the session: what is told to fabricd, and what it directs."""

from dataclasses import dataclass, field


@dataclass
class Directives:
    """What the control loop of fabricd wants of a group. Empty lists and 0: not set."""

    serial: int = 0
    decision: int = 0
    sync_interval: int = 0
    batch_share: list = field(default_factory=list)
    work_units: list = field(default_factory=list)


class NoSession:
    """Another backend than the fabric's: nobody directs, nobody listens."""

    def read(self):
        """The directives in force; None: there are none."""
        return None

    def report(self, **_figures):
        """One step. See fabricshm_step() for the figures."""


def open_session(group=None):
    """The session of the process group `group`, when it is the fabric's."""
    return NoSession()
