"""Who is compared: the process sets that are started, and the entries each of them serves."""

import os
import shutil
from dataclasses import dataclass, field

COLLECTIVES = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send_recv",
               "scan")
PEERS = ("openmpi", "mpich", "gloo")
PINNED = "+pinned"  # ends the names of what is pinned


@dataclass
class ProcessSet:
    """The ranks of one contender at one setting; one process per rank, asleep between turns."""

    name: str
    command: list  # of the launcher, or of one rank where `per_rank` is set
    per_rank: bool = False  # started once per rank with --rank
    environment: dict = field(default_factory=dict)
    pinned: bool = False  # each rank on a core of its own, as far as there are enough


@dataclass(frozen=True)
class Entry:
    """One row of the comparison: a process set and what it is told to do."""

    name: str
    family: str  # the best entry of a family stands for it
    process_set: str
    algorithm: str = "auto"
    memory: str = "heap"
    place: str = ""  # forces a place; the table's own otherwise
    pinned: bool = False

    @property
    def is_checked(self):
        """The limits move bytes without waiting for them, so their results mean nothing."""
        return not self.family.startswith("limit")

    @property
    def is_ours(self):
        """Of this build or of the one before."""
        return self.family.split("-")[0].split(":")[0] in ("fabric", "before")

    def can_take(self, case):
        """A shared result is one allreduce with one output: it has no other forms, but for an
        optimiser step, which shares parameters. The limits are
        about bytes: where there are few, waiting is all there is."""
        if self.family.startswith("limit") and 0 < case.bytes < LIMIT_FROM_BYTES:
            return False
        if case.collective == "barrier" and self.is_ours:
            return self.family in ("fabric", "before")  # no buffers: one form
        if case.collective == "step":
            return True  # the entry says which form of it
        return not self.place or (case.collective == "allreduce" and case.place == "out")


# Settings that were best for some size when about twenty were tried per size; a run picks among
# them again for each size. OpenMPI's are MCA parameters, MPICH's are control variables.
OPENMPI_SETTINGS = {
    "default": {},
    "eager-64k": {"pml": "ob1", "btl": "vader,self", "btl_vader_eager_limit": "65536",
                  "btl_vader_max_send_size": "65536"},
    "no-cma": {"pml": "ob1", "btl": "vader,self", "btl_vader_single_copy_mechanism": "none"},
    "no-cma-64k": {"pml": "ob1", "btl": "vader,self", "btl_vader_single_copy_mechanism": "none",
                   "btl_vader_eager_limit": "65536", "btl_vader_max_send_size": "131072"},
    "sm-256k": {"pml": "ob1", "btl": "vader,self", "coll_sm_priority": "100",
                "coll_sm_fragment_size": "262144"},
    "sm-8k": {"pml": "ob1", "btl": "vader,self", "coll_sm_priority": "100"},
    "ucx": {"pml": "ucx", "pml_ucx_tls": "any", "pml_ucx_devices": "any"},
    "ring-256k": {"pml": "ob1", "btl": "vader,self", "coll_tuned_use_dynamic_rules": "1",
                  "coll_tuned_allreduce_algorithm": "5",
                  "coll_tuned_allreduce_algorithm_segmentsize": "262144"},
}
OPENMPI_ENVIRONMENT = {"ucx": {"UCX_TLS": "posix,cma,self"}}

MPICH_SETTINGS = {
    "default": {},
    "cells-256k": {"MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE": "262144"},
    "release-gather": {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather",
                       "MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM": "release_gather",
                       "MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM": "release_gather"},
}
GLOO_ALGORITHMS = ("ring", "bcube", "halving-doubling", "chunked")
LIMIT_FROM_BYTES = 64 << 10
# Words are explained in bench/limit_driver.cpp.
LIMIT_ALGORITHMS = tuple(
    "push" + how for how in ("", "-nt", "-string", "-ahead", "-nt-ahead", "-wide", "-nt-wide",
                             "-ahead-wide", "-nt-ahead-wide", "-nt-turns", "-nt-ahead-turns",
                             "-ahead-turns", "-split", "-nt-split", "-string-split",
                             "-nt-ahead-split")) + (
    "pull", "pull-nt", "pull-string", "pull-nt-wide")
FABRIC_ALGORITHMS = ("flat", "direct", "ring", "staged", "host")


def _openmpi(build, ranks, scratch, pinned):
    """One set per setting, since MCA parameters are read at the start of a process."""
    program = os.path.join(build, "bench_peer_openmpi")
    launcher = shutil.which("mpirun.openmpi")
    if not launcher or not os.path.exists(program):
        return []
    sets = []
    for setting, parameters in OPENMPI_SETTINGS.items():
        # OpenMPI yields when idle by itself once it knows that it is oversubscribed; with as many
        # ranks as cores it spins, which is its best.
        # What it binds to by default depends on the number of ranks.
        binding = "core:overload-allowed" if pinned else "none"
        command = [launcher, "--oversubscribe", "--bind-to", binding, "-np", str(ranks)]
        everything = {"btl_vader_backing_directory": scratch, "orte_tmpdir_base": scratch}
        if ranks > (os.cpu_count() or 1):
            everything["mpi_yield_when_idle"] = "1"
        for key, value in {**everything, **parameters}.items():
            command += ["--mca", key, value]
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       **OPENMPI_ENVIRONMENT.get(setting, {})}
        sets.append(ProcessSet(f"openmpi-{setting}", command + [program], False, environment,
                               pinned))
    return sets


def _mpich(build, ranks, _scratch, pinned):
    program = os.path.join(build, "bench_peer_mpich")
    launcher = shutil.which("mpirun.mpich")
    if not launcher or not os.path.exists(program):
        return []
    command = [launcher, "-bind-to", "core" if pinned else "none", "-n", str(ranks), program]
    return [ProcessSet(f"mpich-{setting}", command, False, variables, pinned)
            for setting, variables in MPICH_SETTINGS.items()]


def _pin(pinned):
    """For the drivers that pin themselves."""
    return ["--pin", "yes"] if pinned else []


def _gloo(build, ranks, scratch, pinned):
    program = os.path.join(build, "bench_peer_gloo")
    if not os.path.exists(program):
        return []
    store = os.path.join(scratch, f"gloo-{ranks}{'-pinned' if pinned else ''}")
    os.makedirs(store, exist_ok=True)
    return [ProcessSet("gloo", [program, "--world", str(ranks), "--store", store, *_pin(pinned)],
                       True, pinned=pinned)]


def _limit(build, ranks, area_bytes):
    """One process that forks its ranks, so that all have the same memory at the same addresses."""
    program = os.path.join(build, "bench_limit_driver")
    if not os.path.exists(program):
        return []
    # Pinned whatever the others are: a limit does not wander.
    return [ProcessSet("limit", [program, "--world", str(ranks), "--area-bytes", str(area_bytes)])]


def _fabric(name, build, ranks, socket, arena_bytes, pinned):
    """All algorithms from one set: they are chosen call by call."""
    program = os.path.join(build, "bench_fabric_driver")
    if not socket or not os.path.exists(program):
        return []
    arena = f"bench-{os.getpid()}-{ranks}{'-pinned' if pinned else ''}"
    return [ProcessSet(name, [program, "--world", str(ranks), "--socket", socket, "--arena", arena,
                              "--arena-bytes", str(arena_bytes), *_pin(pinned)], True,
                       pinned=pinned)]


@dataclass(frozen=True)
class Builds:
    """Where the drivers are, and what serves them: this build's and that of the one before."""

    drivers: str
    socket: str
    drivers_before: str = ""
    socket_before: str = ""


def process_sets(builds, ranks, scratch, largest, pairs, pinning):
    """All sets that can be started here, by family. `pinning`: False, True or both."""
    area = max(64 << 20, 2 * largest * pairs + (2 << 20))
    # The arena also holds the group block and the staging memory of the collectives.
    arena = ranks * area + largest + (512 << 20)
    sets = {"limit": _limit(builds.drivers, ranks, area)}
    for pinned in pinning:
        found = {
            "openmpi": _openmpi(builds.drivers, ranks, scratch, pinned),
            "mpich": _mpich(builds.drivers, ranks, scratch, pinned),
            "gloo": _gloo(builds.drivers, ranks, scratch, pinned),
            "fabric": _fabric("fabric", builds.drivers, ranks, builds.socket, arena, pinned)}
        # The same ranks over another build: has a change made it faster or slower?
        if builds.drivers_before:
            found["before"] = _fabric("before", builds.drivers_before, ranks, builds.socket_before,
                                      arena, pinned)
        for family, own in found.items():
            for process_set in own:
                process_set.name += PINNED if pinned else ""
            sets.setdefault(family, []).extend(own)
    return sets


def entries_of(family, process_set):
    """The entries one process set serves."""
    name, pinned = process_set.name, process_set.pinned
    suffix = PINNED if pinned else ""
    if family in ("openmpi", "mpich"):
        return [Entry(name, family, name, pinned=pinned)]
    if family == "gloo":
        return [Entry(f"gloo-{algorithm}{suffix}", family, name, algorithm, pinned=pinned)
                for algorithm in GLOO_ALGORITHMS]
    if family == "limit":
        plain = [Entry(f"limit-{name}", "limit", "limit", name, "arena")
                 for name in LIMIT_ALGORITHMS]
        shared = [Entry(f"limit-shared-{name}", "limit-shared", "limit", name, "arena", "shared")
                  for name in LIMIT_ALGORITHMS if not name.startswith("pull")]
        return plain + shared
    forms = [("", "auto", "arena", ""), ("-shared", "auto", "arena", "shared"),
             ("-staged", "auto", "heap", "")]
    if family == "fabric":
        forms += [(f":{algorithm}", algorithm, "heap" if algorithm == "staged" else "arena", "")
                  for algorithm in FABRIC_ALGORITHMS]
    return [Entry(f"{family}{form}{suffix}", f"{family}{form}", name, algorithm, memory, place,
                  pinned) for form, algorithm, memory, place in forms]


def is_wanted(entry, wanted):
    """`wanted` names entries or families; without it all but the forced algorithms of the fabric.
    The build before does what this one does."""
    if not wanted:
        return ":" not in entry.name
    name = entry.name.removesuffix(PINNED)
    if entry.family.startswith("before"):
        name = name.replace("before", "fabric", 1)
    family = name.split("-")[0]
    return name in wanted or entry.family in wanted or (family in wanted and ":" not in name)
