"""Who is compared: the process sets that are started, and the entries each of them serves."""

import os
import shutil
from dataclasses import dataclass, field

COLLECTIVES = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
PEERS = ("openmpi", "mpich", "gloo")


@dataclass
class ProcessSet:
    """The ranks of one contender at one setting; one process per rank, asleep between turns."""

    name: str
    command: list  # of the launcher, or of one rank where `per_rank` is set
    per_rank: bool = False  # started once per rank with --rank
    environment: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One row of the comparison: a process set and what it is told to do."""

    name: str
    family: str  # the best entry of a family stands for it
    process_set: str
    algorithm: str = "auto"
    memory: str = "heap"
    place: str = ""  # forces a place; the table's own otherwise

    @property
    def is_checked(self):
        """The limits move bytes without waiting for them, so their results mean nothing."""
        return not self.family.startswith("limit")

    def can_take(self, case):
        """A shared result is one allreduce with one output: it has no other forms."""
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
LIMIT_ALGORITHMS = ("push", "push-nt", "pull", "pull-nt")
FABRIC_ALGORITHMS = ("flat", "direct", "ring", "staged", "host")


def _openmpi(build, ranks, scratch):
    """One set per setting, since MCA parameters are read at the start of a process."""
    program = os.path.join(build, "bench_peer_openmpi")
    launcher = shutil.which("mpirun.openmpi")
    if not launcher or not os.path.exists(program):
        return []
    sets = []
    for setting, parameters in OPENMPI_SETTINGS.items():
        # OpenMPI yields when idle by itself once it knows that it is oversubscribed; with as many
        # ranks as cores it spins, which is its best.
        command = [launcher, "--oversubscribe", "-np", str(ranks)]
        everything = {"btl_vader_backing_directory": scratch, "orte_tmpdir_base": scratch}
        if ranks > (os.cpu_count() or 1):
            everything["mpi_yield_when_idle"] = "1"
        for key, value in {**everything, **parameters}.items():
            command += ["--mca", key, value]
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       **OPENMPI_ENVIRONMENT.get(setting, {})}
        sets.append(ProcessSet(f"openmpi-{setting}", command + [program], False, environment))
    return sets


def _mpich(build, ranks, _scratch):
    program = os.path.join(build, "bench_peer_mpich")
    launcher = shutil.which("mpirun.mpich")
    if not launcher or not os.path.exists(program):
        return []
    return [ProcessSet(f"mpich-{setting}", [launcher, "-n", str(ranks), program], False, variables)
            for setting, variables in MPICH_SETTINGS.items()]


def _gloo(build, ranks, scratch):
    program = os.path.join(build, "bench_peer_gloo")
    if not os.path.exists(program):
        return []
    store = os.path.join(scratch, f"gloo-{ranks}")
    os.makedirs(store, exist_ok=True)
    return [ProcessSet("gloo", [program, "--world", str(ranks), "--store", store], True)]


def _limit(build, ranks, area_bytes):
    """One process that forks its ranks, so that all have the same memory at the same addresses."""
    program = os.path.join(build, "bench_limit_driver")
    if not os.path.exists(program):
        return []
    return [ProcessSet("limit", [program, "--world", str(ranks), "--area-bytes", str(area_bytes)])]


def _fabric(build, ranks, socket, arena_bytes):
    """All algorithms from one set: they are chosen call by call."""
    program = os.path.join(build, "bench_fabric_driver")
    if not socket or not os.path.exists(program):
        return []
    return [ProcessSet("fabric", [program, "--world", str(ranks), "--socket", socket, "--arena",
                                  f"bench-{os.getpid()}-{ranks}", "--arena-bytes",
                                  str(arena_bytes)], True)]


def _before(fabric_sets, library):
    """The same ranks over the library of another build: has a change made it faster or slower?"""
    return [ProcessSet("before", [*made.command[:-3], made.command[-3] + "-before",
                                  *made.command[-2:]], True, {"LD_LIBRARY_PATH": library})
            for made in fabric_sets if library]


def process_sets(build, ranks, scratch, socket, largest, pairs, against=None):
    """All sets that can be started here, by family. `against`: the folder of another library."""
    area = max(64 << 20, 2 * largest * pairs + (2 << 20))
    # The arena also holds the group block and the staging memory of the collectives.
    arena = ranks * area + largest + (512 << 20)
    fabric = _fabric(build, ranks, socket, arena)
    sets = {"openmpi": _openmpi(build, ranks, scratch), "mpich": _mpich(build, ranks, scratch),
            "gloo": _gloo(build, ranks, scratch), "fabric": fabric,
            "limit": _limit(build, ranks, area)}
    return {**sets, "before": _before(fabric, against)} if against else sets


def entries_of(family, process_set):
    """The entries one process set serves."""
    if family in ("openmpi", "mpich"):
        return [Entry(process_set.name, family, process_set.name)]
    if family == "gloo":
        return [Entry(f"gloo-{name}", family, "gloo", name) for name in GLOO_ALGORITHMS]
    if family == "limit":
        plain = [Entry(f"limit-{name}", "limit", "limit", name, "arena")
                 for name in LIMIT_ALGORITHMS]
        shared = [Entry(f"limit-shared-{name}", "limit-shared", "limit", name, "arena", "shared")
                  for name in LIMIT_ALGORITHMS[:2]]
        return plain + shared
    plain = [Entry(family, family, family, "auto", "arena"),
             Entry(f"{family}-shared", f"{family}-shared", family, "auto", "arena", "shared"),
             Entry(f"{family}-staged", f"{family}-staged", family, "auto", "heap")]
    forced = [Entry(f"{family}:{name}", f"{family}:{name}", family, name,
                    "heap" if name == "staged" else "arena") for name in FABRIC_ALGORITHMS]
    return plain + (forced if family == "fabric" else [])


def is_wanted(entry, wanted):
    """`wanted` names entries or families; without it all but the forced algorithms of the fabric."""
    if not wanted:
        return ":" not in entry.name
    family = entry.family.split("-")[0]
    return entry.name in wanted or entry.family in wanted or (
        family in wanted and ":" not in entry.name)
