"""What a process has used."""

import os


def cpu_seconds(pid):
    """What all threads of the process have used so far, in user and in kernel mode."""
    with open(f"/proc/{pid}/stat") as file:
        # Behind the name, which may hold anything but ends with the last bracket.
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
