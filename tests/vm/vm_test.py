"""Boots the virtual machines of a scenario and checks what they report."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from image import Unavailable, make_image
from machine import Machine, booted, introduce

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
HOST_A, HOST_B = "a" * 32, "b" * 32

FABRICD = ["fabricd/fabricd", "fabricd/ctl/fabricctl"]
SUITES = ["tests/multiproc/test_multiproc_" + name for name in
          ("client_arenas", "client_groups", "client_restart", "client_tensors", "pool_processes",
           "collective_processes")]
SUITES += ["tests/crash/test_crash_" + name for name in ("collective_killed_rank", "pool_daemon_killed")]


def soft_reserved(pool: Path | None, mib: int, cpus: int = 2) -> tuple[list, dict]:
    """A machine with a memory node without processors, which the firmware's tables rate as slower;
    the kernel is configured to soft-reserve it, so that it becomes a DAX device. `pool` is the file
    behind it; without one it is the machine's own."""
    memory = (f"memory-backend-file,id=r1,size={mib}M,share=on,mem-path={pool}" if pool else
              f"memory-backend-ram,id=r1,size={mib}M")
    arguments = ["-M", "q35,hmat=on,max-ram-below-4g=1G", "-m", f"{1024 + mib}M", "-smp", str(cpus),
                 "-object", "memory-backend-ram,size=1G,id=r0", "-object", memory,
                 "-numa", f"node,nodeid=0,cpus=0-{cpus - 1},memdev=r0,initiator=0",
                 "-numa", "node,nodeid=1,memdev=r1,initiator=0"]
    for node, latency, bandwidth in ((0, 80, "100G"), (1, 250, "30G")):
        target = f"hmat-lb,initiator=0,target={node},hierarchy=memory"
        arguments += ["-numa", f"{target},data-type=access-latency,latency={latency}",
                      "-numa", f"{target},data-type=access-bandwidth,bandwidth={bandwidth}"]
    # The second node begins at 4 GiB. From type 1 (memory) to type 0xf0000000 (soft-reserved).
    return arguments, {"memmap": f"{mib}M%0x100000000-1+0xefffffff"}


@dataclass
class Guest:
    """One machine of a scenario; `script` is tests/vm/guest/<script>.sh."""

    script: str
    arguments: list
    words: dict = field(default_factory=dict)
    host: str = HOST_A
    ends_at: str = ""  # the place at which its power is cut; "": it ends by itself


@dataclass
class Scenario:
    guests: list
    programs: list
    modules: list
    tools: list = field(default_factory=list)
    flavour: str = "cloud"


def devdax(_work: Path) -> Scenario:
    arguments, words = soft_reserved(None, 512)
    return Scenario([Guest("devdax", arguments, words)],
                    FABRICD + SUITES + ["tests/vm/test_vm_devdax_rules"],
                    ["device_dax", "dax_hmem"], ["daxctl"])


def numa_node(_work: Path) -> Scenario:
    arguments, words = soft_reserved(None, 768)
    return Scenario([Guest("numa_node", arguments, words)],
                    FABRICD + SUITES + ["tests/vm/test_vm_shard_nodes"],
                    ["device_dax", "dax_hmem", "kmem"], ["daxctl"])


def cxl_type3(work: Path) -> Scenario:
    arguments = ["-M", "q35,cxl=on", "-m", "1G,slots=8,maxmem=8G", "-smp", "2"]
    # Two sockets, each with memory of its own.
    for node in (0, 1):
        arguments += ["-object", f"memory-backend-ram,id=r{node},size=512M",
                      "-numa", f"node,nodeid={node},cpus={node},memdev=r{node}"]
    for name, size in (("memory", "256M"), ("label", "256K")):
        path = work / name
        path.unlink(missing_ok=True)  # labels of an earlier run, in a folder that was kept
        arguments += ["-object", f"memory-backend-file,id={name},share=on,mem-path={path},size={size}"]
    # The second root port has no device. With one port alone QEMU loses what is stored, silently.
    arguments += ["-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1",
                  "-device", "cxl-rp,port=0,bus=cxl.1,id=port0,chassis=0,slot=2",
                  "-device", "cxl-rp,port=1,bus=cxl.1,id=port1,chassis=0,slot=3",
                  "-device", "cxl-type3,bus=port0,memdev=memory,lsa=label,id=cxl-pmem0",
                  "-M", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"]
    modules = ["cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "nd_pmem", "device_dax", "dax_pmem"]
    return Scenario([Guest("cxl_type3", arguments)],
                    FABRICD + SUITES + ["tests/vm/test_vm_devdax_rules",
                                        "tests/unit/machine/test_unit_machine"], modules,
                    ["cxl", "ndctl"])


def poison(_work: Path) -> Scenario:
    arguments, words = soft_reserved(None, 256)
    return Scenario([Guest("poison", arguments, words)], FABRICD + ["tests/vm/test_vm_poison"],
                    ["device_dax", "dax_hmem"], flavour="generic")


def two_hosts(work: Path) -> Scenario:
    (work / "pool").unlink(missing_ok=True)
    arguments, words = soft_reserved(work / "pool", 256)
    return Scenario([Guest("host_a", arguments, words, HOST_A),
                     Guest("host_b", arguments, words, HOST_B)],
                    FABRICD + ["tests/vm/test_vm_two_hosts"], ["device_dax", "dax_hmem"])


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def certificates(folder: Path, addresses: dict) -> list:
    """An authority, and for each name a certificate with its address. The files, for the image."""
    if shutil.which("openssl") is None:
        raise Unavailable("openssl is not installed")
    folder.mkdir(exist_ok=True)
    key = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl(folder, *key, "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, address in addresses.items():
        (folder / f"{name}.names").write_text(f"subjectAltName=DNS:{name},IP:{address}\n"
                                              "extendedKeyUsage=serverAuth,clientAuth\n")
        openssl(folder, *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-extfile", f"{name}.names", "-out", f"{name}.pem")
    return [str(folder / "ca.pem"), *(str(folder / f"{name}.{kind}") for name in addresses for kind in ("pem", "key"))]


def shared_pool(work: Path) -> Scenario:
    """A pool's owner and its guest, each with a kernel and a fabricd of its own, and a network between them."""
    (work / "pool").unlink(missing_ok=True)
    arguments, words = soft_reserved(work / "pool", 256)
    files = certificates(work / "tls", {"owner": "10.0.0.1", "guest": "10.0.0.2"})
    words = {**words, "tls": work / "tls"}

    def host(script: str, own: int, other: int, machine: str, ends_at: str) -> Guest:
        # Datagrams: neither machine has to be there first.
        wire = (f"dgram,id=wire,local.type=unix,local.path={work}/wire{own},"
                f"remote.type=unix,remote.path={work}/wire{other}")
        card = f"virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:0{own}"
        return Guest(script, [*arguments, "-netdev", wire, "-device", card], words, machine, ends_at)

    return Scenario([host("pool_owner", 1, 2, HOST_A, ""), host("pool_guest", 2, 1, HOST_B, "alone")],
                    FABRICD + ["tests/vm/test_vm_shared_pool", "emu/litmus/fabric-litmus", *files],
                    ["device_dax", "dax_hmem", "virtio_pci", "virtio_net"])


def mount(_work: Path) -> Scenario:
    """The mount's kills on Debian's kernel."""
    return Scenario([Guest("mount", ["-M", "q35", "-m", "1G", "-smp", "2"])],
                    ["fabricd/data/mount/fabric-mount", "fabricd/data/mount/fabric-mount-keeper",
                     "tests/multiproc/mount/test_multiproc_mount_kills"], ["fuse"])


SYSTEMD = Path("/usr/lib/systemd")
# Not the whole folder: what else a system starts would take longer than the cases.
UNITS = ["basic.target", "sysinit.target", "shutdown.target", "sockets.target", "umount.target",
         "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket"]


def under_systemd(script: str, programs: list, units: list, modules: list, tools: tuple = ()) -> Scenario:
    """systemd as the first process of the machine, and units that are shipped."""
    needed = [SYSTEMD / "systemd", SYSTEMD / "systemd-journald", *(SYSTEMD / "system" / name for name in UNITS)]
    if missing := [str(path) for path in needed if not path.exists()]:
        raise Unavailable(f"{missing[0]} is not there: package systemd (scripts/setup installs it)")
    if (executor := SYSTEMD / "systemd-executor").exists():  # of later ones: what starts a service
        needed.append(executor)
    files = [*needed, ROOT / "packaging/fabricd.sysusers", *(f"packaging/{name}.service" for name in ("fabricd", *units))]
    return Scenario([Guest(script, ["-M", "q35", "-m", "1G", "-smp", "2"])], FABRICD + programs + [str(file) for file in files],
                    ["autofs4", *modules], ["systemctl", "journalctl", "systemd-sysusers", *tools])


def service(_work: Path) -> Scenario:
    return under_systemd("service", ["tests/vm/test_vm_service_client"], [], [])


def units(_work: Path) -> Scenario:
    """The other shipped units: the metrics' bridge, the dashboard, the data cache and its mount, a user's queue of jobs."""
    programs = ["bridge/fabric-metrics-bridge", "data/program/fabric-data", "data/mount/fabric-mount", "data/mount/fabric-mount-keeper"]
    of_users = [str(SYSTEMD / "user" / name) for name in ("basic.target", "default.target", "shutdown.target", "exit.target", "systemd-exit.service")]
    if missing := [path for path in of_users if not Path(path).exists()]:
        raise Unavailable(f"{missing[0]} is not there: package systemd (scripts/setup installs it)")
    return under_systemd("units", [*(f"fabricd/{name}" for name in programs), *of_users],
                         ["fabric-metrics-bridge", "fabric-dashboard", "fabric-data", "fabric-mount@", "fabric-jobs"], ["fuse"],
                         ("setpriv",))


SCENARIOS = {scenario.__name__: scenario
             for scenario in (devdax, numa_node, cxl_type3, poison, two_hosts, shared_pool, service, units, mount)}


def run(scenario: Scenario, work: Path, build: Path, kernels: Path) -> bool:
    image = make_image(work, kernels, scenario.flavour, scenario.modules, scenario.tools,
                       [build / name for name in scenario.programs], build)
    machines = []
    try:
        for guest in scenario.guests:
            words = {"scenario": guest.script, "machine": guest.host, **guest.words}
            machines.append(booted(lambda g=guest, w=words: Machine(
                g.script, g.arguments, image, kernels, scenario.flavour, w, work)))
        if len(machines) > 1:
            introduce(machines, {guest.script: guest.ends_at for guest in scenario.guests if guest.ends_at})
        reports = [machine.wait() for machine in machines]
    finally:
        for machine in machines:
            machine.stop()
    for machine, report in zip(machines, reports):
        for case in report.passed:
            print(f"{machine.name}: {case}")
        if not report.is_good():
            machine.show()
            print(f"{machine.name}: failed: {report.failed or 'it did not come to its end'}")
    return all(report.is_good() for report in reports)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--build", type=Path, required=True, help="folder of the build")
    parser.add_argument("--keep", type=Path, help="folder for the consoles, kept afterwards")
    options = parser.parse_args()
    kernels = Path(os.environ.get("FABRIC_VM_KERNELS", ROOT / "build/vm/kernels"))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fabric-vm-") as folder:
        work = options.keep or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        try:
            if platform.machine() != "x86_64":
                raise Unavailable("the machines are x86-64 ones, and so are the programs in them")
            good = run(SCENARIOS[options.scenario](work), work, options.build.resolve(), kernels)
        except Unavailable as reason:
            print(f"skipped: {reason}")
            return 1 if os.environ.get("FABRIC_TESTS_FAIL_ON_SKIP") == "1" else 77
    print(f"{options.scenario}: {'passed' if good else 'FAILED'} "
          f"in {time.monotonic() - start:.1f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
