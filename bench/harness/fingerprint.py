"""What a figure means without: the machine and the versions it was measured on."""

import os
import platform
import subprocess


def _read(path, fallback=""):
    """The file's text; `fallback` where there is none, as in containers and other kernels."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return fallback


def _first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else ""


def _cpu_field(field):
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(field):
            return line.split(":", 1)[1].strip()
    return ""


def _chosen(path):
    """The word in brackets of a sysfs choice such as `always [madvise] never`."""
    text = _read(path)
    return text.split("[", 1)[1].split("]", 1)[0] if "[" in text else text


def _caches():
    base = "/sys/devices/system/cpu/cpu0/cache"
    found = {}
    for index in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        folder = os.path.join(base, index)
        kind = _read(f"{folder}/type")
        if kind and kind != "Instruction":
            found[f"L{_read(folder + '/level')}"] = _read(f"{folder}/size")
    return found


def _memory_gib():
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal"):
            return round(int(line.split()[1]) / 2**20, 1)
    return 0


def memory_available():
    """Bytes that can be used without swapping."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


def fingerprint(source_folder, versions):
    """A dictionary of plain values; `versions` is what each contender said of itself."""
    flags = _cpu_field("flags").split()
    here = ["git", "-C", source_folder]
    changed = _first_line(here + ["status", "--porcelain", "--untracked-files=no"])
    return {
        # "not visible" and zeros are facts, too: a page without them would look complete.
        "cpu": _cpu_field("model name"),
        "cpu_family_model": f"{_cpu_field('cpu family')}/{_cpu_field('model')}",
        "vector": [flag for flag in ("avx2", "avx512f", "avx512_bf16") if flag in flags],
        "cores": os.cpu_count(),
        "caches": _caches(),
        "memory_gib": _memory_gib(),
        "hypervisor": "hypervisor" in flags,
        "kernel": platform.release(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "not visible"),
        "thp": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "thp_shmem": _chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "huge_pages": int(_read("/proc/sys/vm/nr_hugepages", "0") or 0),
        "load_1min": os.getloadavg()[0],
        "commit": _first_line(here + ["rev-parse", "--short=12", "HEAD"])
        + (" + changes" if changed else ""),
        "versions": versions,
    }
