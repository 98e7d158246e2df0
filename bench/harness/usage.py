"""What a process has used."""

import os


def cpu_seconds(pid):
    """What all threads of the process have used so far, in user and in kernel mode."""
    with open(f"/proc/{pid}/stat") as file:
        # Behind the name, which may hold anything but ends with the last bracket.
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def proportional_bytes(pid):
    """Memory of the process, of what it shares its part."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
