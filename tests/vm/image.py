"""Makes the initramfs that a guest boots: busybox, kernel modules, tools, and our own programs.

Every program lies at the path it has on the host, with the libraries that ldd finds. So what was
compiled in (the path of fabricd in a test program, the run path of a library) is right in the guest.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
# Names under which busybox is called by our scripts, besides what it finds by itself.
LINKS = ("sh", "modprobe", "insmod", "mount", "ip")


class Unavailable(Exception):
    """What the guest needs is not on this machine; the test is skipped with this text."""


def program(name: str) -> Path:
    """A tool of the host that goes into the guest."""
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise Unavailable(f"{name} is not installed (scripts/setup installs it)")
    return Path(found)


def libraries(path: Path) -> set:
    """The shared libraries of a program, its loader included; empty for a static one."""
    run = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    if "not found" in run.stdout:
        raise RuntimeError(f"{path} lacks a library:\n{run.stdout}")
    return {Path(match) for match in LIBRARY.findall(run.stdout)}


def put(root: Path, path: Path) -> None:
    """Copies a file to its own path below `root`; a link becomes what it points to."""
    target = root / path.relative_to("/")
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)


def kernel_of(kernels: Path, flavour: str) -> tuple[Path, str]:
    """The bootable file of a flavour, and its release, as `uname -r` says it."""
    images = sorted((kernels / flavour / "boot").glob("vmlinuz-*"))
    if not images:
        raise Unavailable(f"there is no {flavour} kernel in {kernels} (scripts/vm_kernels fetches it)")
    return images[-1], images[-1].name.removeprefix("vmlinuz-")


def put_modules(root: Path, kernels: Path, flavour: str, modules: list) -> None:
    """The modules with all they depend on, and the index by which modprobe finds them."""
    tree = kernels / flavour
    release = kernel_of(kernels, flavour)[1]
    if not (tree / "lib/modules" / release / "modules.dep").is_file():
        subprocess.run(["depmod", "-b", str(tree), release], check=True)
    for module in modules:
        # Without this machine's own rules: ndctl installs one that replaces the loading of libnvdimm.
        run = subprocess.run(["modprobe", "-C", "/dev/null", "-d", str(tree), "-S", release,
                              "--show-depends", module], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"no module {module} in {flavour}: {run.stderr}")
        for line in run.stdout.splitlines():
            if line.startswith("insmod "):
                path = Path(line.split()[1])
                target = root / path.relative_to(tree)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy2(tree / "lib/modules" / release / name, root / "lib/modules" / release / name)
    subprocess.run(["depmod", "-b", str(root), release], check=True)


def put_system(root: Path) -> None:
    busybox = program("busybox")
    if libraries(busybox):
        raise Unavailable("busybox is not the static one (package busybox-static)")
    for folder in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copy2(busybox, root / "bin/busybox")
    for name in LINKS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    shutil.copytree(HERE / "guest", root / "guest")
    (root / "init").symlink_to("guest/init")


def make_image(work: Path, kernels: Path, flavour: str, modules: list, tools: list, programs: list,
               build: Path) -> Path:
    """Writes `work`/initramfs.cpio and returns it. Not compressed: unpacking would take the guest
    longer than the host takes to load it."""
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    put_system(root)
    put_modules(root, kernels, flavour, modules)
    (root / "guest/build").write_text(f"{build}\n")
    (root / "guest/source").write_text(f"{HERE.parents[1]}\n")
    for path in [*map(program, tools), *programs]:
        if not path.is_file():
            raise RuntimeError(f"{path} is not built")
        put(root, path)
        for library in sorted(libraries(path)):
            put(root, library)
    names = subprocess.run(["find", ".", "-print0"], cwd=root, capture_output=True, check=True).stdout
    image = work / "initramfs.cpio"
    with image.open("wb") as out:
        subprocess.run([str(program("cpio")), "-o", "-H", "newc", "-0", "--quiet"], cwd=root,
                       input=names, stdout=out, check=True, env={**os.environ, "LC_ALL": "C"})
    shutil.rmtree(root)
    return image
