#!/usr/bin/python3
"""lint.layers: a file includes its own folder and lower layers only, each third-party library has
its home, and neither files nor folders include each other in a circle. See docs/architecture.md."""

import re
from pathlib import Path

from lint_support import line_of, read_text, run_lint, source_files

# The layer of each folder, as in the table of docs/architecture.md. The longest prefix counts.
LAYERS = {
    "kernels": 0,
    "libfabricshm/include": 0,
    "libfabricshm/base": 1,
    "libfabricshm/os": 2,
    "libfabricshm/shm": 3,
    "libfabricshm/machine": 3,
    "libfabricshm/proto": 4,
    "libfabricshm/collective": 5,
    "libfabricshm/optim": 6,
    "libfabricshm/net": 6,
    "libfabricshm/vgpu": 5,
    "libfabricshm/cuda": 6,
    "libfabricshm/client": 7,
    "libfabricshm/preload": 0,
    "libfabricshm/python": 8,
    "libfabricshm/torch": 8,
    "emu": 8,
    "emu/sim": 14,  # above the control loop, whose decisions it is to try out
    "fabricd/pool": 9,
    "fabricd/telemetry": 9,
    "fabricd/vgpu": 9,
    "fabricd/control": 10,  # the settings of the loop alone
    "fabricd/control/stages": 10,
    "fabricd/control/journal": 11,
    "fabricd/control/policies": 12,
    "fabricd/control/loop": 13,
    "fabricd/data": 10,
    "fabricd/data/prep": 9,
    "fabricd/jobs": 10,
    "fabricd/http": 9,
    "fabricd/net": 10,
    "fabricd/config": 14,
    "fabricd/server": 14,
    "fabricd/peer": 15,
    "fabricd/service": 16,
    "fabricd": 17,
    "fabricd/bridge": 17,
    "fabricd/data/serve": 16,  # above the event loop; a client of the daemon
    "fabricd/data/program": 17,
    "fabricd/data/mount": 17,
    "fabricd/ctl": 17,
    "fabricd/kubernetes": 17,
    "fabricd/slurm": 17,
    "tests": 19,  # also of what bench/ is made of
    "bench": 18,
    "examples": 18,
}

# fabricctl's folder and the daemon's main share a layer and may share the code of the admin API.
SAME_UNIT = {"fabricd/ctl": "fabricd"}

# Programs that are clients of the daemon.
CLIENTS = {"fabricd/ctl", "fabricd/data/serve", "fabricd/data/program"}

# Shared state has a client's view and a daemon's view (house style): neither includes the other.
CLIENT_VIEW = {"libfabricshm/collective", "libfabricshm/optim", "libfabricshm/net", "libfabricshm/client"}

# Where each library may be included: header pattern -> folders. tests/ and bench/ come on top for
# what they are made with.
LIBRARIES = {
    r"spdlog/": {"libfabricshm/base"},
    r"hwloc(/|\.h)|numa(if)?\.h": {"libfabricshm/machine"},
    r"pybind11/": {"libfabricshm/python", "libfabricshm/torch"},
    r"(torch|c10|ATen|c10d)/": {"libfabricshm/torch", "tests"},
    r"Python\.h": {"libfabricshm/python", "libfabricshm/torch"},
    r"(.*mmintrin|x86intrin|arm_neon|cpuid)\.h": {"kernels"},
    r"(cuda|cuda_runtime|cuda_bf16|cuda_fp16|cublas.*|cusolver.*|nvml)\.h|cuda/":
        {"kernels", "libfabricshm/vgpu", "libfabricshm/cuda", "fabricd/telemetry", "bench"},
    r"liburing(\.h|/)": {"libfabricshm/os"},
    r"rdma/": {"libfabricshm/net"},
    r"curl/|pugixml\.hpp": {"fabricd/data"},
    r"turbojpeg\.h|sentencepiece_processor\.h": {"fabricd/data/prep"},
    r"fuse3/": {"fabricd/data/mount"},
    r"sqlite3\.h": {"fabricd/data"},
    r"openssl/": {"fabricd/data", "fabricd/net", "tests"},
    r"boost/": {"fabricd/data", "fabricd/http"},
    r"slurm/": {"fabricd/slurm"},
    r"(grpcpp|grpc|google/protobuf)/": {"fabricd/server", "fabricd/jobs", "fabricd/net", "fabricd/peer", "fabricd/ctl",
                                         "fabricd/kubernetes", "tests"},
    r"toml(\+\+|plusplus)/|toml\.hpp": {"fabricd/config", "emu", "emu/sim"},
    r"CLI/": {"fabricd/config", "fabricd/ctl", "fabricd/data/program", "fabricd/data/mount", "emu", "emu/sim", "bench"},
    r"nlohmann/": {"fabricd/ctl", "fabricd/data/serve", "fabricd/data/program", "emu/sim", "bench", "tests"},
    r"doctest/": {"tests"},
    r"benchmark/": {"bench"},
    r"(mpi\.h|gloo/)": {"bench"},
    r"cblas.*\.h": {"tests", "bench"},
}

# Headers of the language and of the system have no home.
CXX_STANDARD = re.compile(r"[a-z_0-9]+(\.h)?$")
SYSTEM_FOLDER = re.compile(r"(sys|linux|netinet|arpa|net|asm|bits|cxxabi|experimental|ext|sanitizer)/")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
GENERATED = re.compile(r"\.pb\.h$")
PUBLIC_PREFIX = "fabricshm/"
PUBLIC_FOLDER = "libfabricshm/include"


def folder_of(path: Path) -> str | None:
    """The folder of the table that `path` lies in, or None."""
    parts = path.parts[:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in LAYERS:
            return name
    return None


def library_finding(header: str, folder: str, where: str) -> str | None:
    """Whether a header in angle brackets may be included here. An unknown one may not."""
    for pattern, homes in LIBRARIES.items():
        if re.match(pattern, header):
            if folder in homes:
                return None
            return f"{where}: <{header}> may be included in {', '.join(sorted(homes))} only"
    if CXX_STANDARD.match(header) or SYSTEM_FOLDER.match(header):
        return None
    return f"{where}: <{header}> belongs to no library that scripts/check_layers.py knows"


def direction_finding(folder: str, other: str, where: str, target: str) -> str | None:
    """Whether the folder of a file may include another folder at all."""
    own_unit = SAME_UNIT.get(folder, folder)
    if own_unit == SAME_UNIT.get(other, other):
        return None
    if folder.startswith("fabricd") and folder not in CLIENTS and other in CLIENT_VIEW:
        return f"{where}: the daemon's view includes the client's view: {target}"
    if LAYERS[other] < LAYERS[folder]:
        return None
    return (f"{where}: {folder} (layer {LAYERS[folder]}) includes {target} of {other} "
            f"(layer {LAYERS[other]}); only lower layers may be included")


def resolve(root: Path, bracket: str, header: str) -> Path | None:
    """The file of this repository that an include means, or None when it means a library's."""
    if bracket == "<" and header.startswith(PUBLIC_PREFIX):
        header = f"{PUBLIC_FOLDER}/{header}"
    elif bracket == "<":
        return None
    return Path(header) if (root / header).is_file() else None


def check_file(root: Path, path: Path, edges: dict[Path, set[Path]]) -> list[str]:
    """Findings of one file; what it includes goes into `edges`."""
    folder = folder_of(path)
    if folder is None:
        return [f"{path}: its folder is not in the table of layers"]
    findings = []
    text = read_text(root, path)
    for match in INCLUDE.finditer(text):
        bracket, header = match.groups()
        where = f"{path}:{line_of(text, match.start())}"
        target = resolve(root, bracket, header)
        finding = None
        if target is not None:
            edges.setdefault(path, set()).add(target)
            other = folder_of(target)
            finding = (direction_finding(folder, other, where, header) if other is not None
                       else f"{where}: {header} lies in no folder of the table")
        elif bracket == "<":
            finding = library_finding(header, folder, where)
        elif not GENERATED.search(header):
            finding = f"{where}: \"{header}\" is not a path from the repository's root"
        if finding is not None:
            findings.append(finding)
    return findings


def find_cycles(edges: dict) -> list[list]:
    """One path for each circle that a depth-first walk finds."""
    cycles, state, stack = [], {}, []

    def visit(node):
        state[node] = "open"
        stack.append(node)
        for neighbour in sorted(edges.get(node, ())):
            # Still open: it is on the way that led here.
            if state.get(neighbour) == "open":
                cycles.append(stack[stack.index(neighbour):] + [neighbour])
            elif neighbour not in state:
                visit(neighbour)
        stack.pop()
        state[node] = "done"

    for node in sorted(edges):
        if node not in state:
            visit(node)
    return cycles


def folder_edges(edges: dict[Path, set[Path]]) -> dict[str, set[str]]:
    """Between folders. Those of SAME_UNIT count as one."""
    result: dict[str, set[str]] = {}
    for path, targets in edges.items():
        own = SAME_UNIT.get(folder_of(path), folder_of(path))
        others = {SAME_UNIT.get(folder_of(target), folder_of(target)) for target in targets}
        result.setdefault(own, set()).update(other for other in others if other and other != own)
    return result


def check(root: Path) -> list[str]:
    """Checks include directions, homes of libraries, and circles."""
    edges: dict[Path, set[Path]] = {}
    findings = []
    for path in source_files(root):
        findings += check_file(root, path, edges)
    for cycle in find_cycles(edges):
        findings.append("files include each other: " + " -> ".join(map(str, cycle)))
    for cycle in find_cycles(folder_edges(edges)):
        findings.append("folders include each other: " + " -> ".join(cycle))
    return findings


if __name__ == "__main__":
    run_lint("lint.layers", check)
