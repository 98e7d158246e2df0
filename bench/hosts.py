#!/usr/bin/python3
"""How fast is allreduce over two hosts of two ranks, against gloo and OpenMPI over the same wire?

The hosts are network namespaces with a pair of virtual devices between them, with a rate (token bucket) or without.
Rounds are interleaved: in each, every contender measures every size once. Needs root, ip and tc."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PER_HOST = 2
NAMES = ("fabric-bench-a", "fabric-bench-b")
NETWORK = "10.99.84"
WORLD = 2 * PER_HOST


def run(command):
    subprocess.run(command, shell=True, check=True)


class Wire:
    """Two namespaces and the wire between them."""

    def __init__(self):
        self.close()
        for name in NAMES:
            run(f"ip netns add {name}")
        run(f"ip link add v0 netns {NAMES[0]} type veth peer name v1 netns {NAMES[1]}")
        for side, name in enumerate(NAMES):
            run(f"ip -n {name} addr add {NETWORK}.{side + 1}/24 dev v{side}")
            run(f"ip -n {name} link set lo up")
            run(f"ip -n {name} link set v{side} up")

    def limit(self, rate):
        for side, name in enumerate(NAMES):
            subprocess.run(f"ip netns exec {name} tc qdisc del dev v{side} root", shell=True, stderr=subprocess.DEVNULL)
            if rate:
                run(f"ip netns exec {name} tc qdisc add dev v{side} root tbf rate {rate} burst 256kb latency 50ms")

    def close(self):
        for name in NAMES:
            subprocess.run(f"ip netns del {name}", shell=True, stderr=subprocess.DEVNULL)


class Contender:
    """The ranks of one contender, asleep between their turns (bench/driver.hpp)."""

    def __init__(self, name, algorithm, memory, folder):
        self.name, self.algorithm, self.memory = name, algorithm, memory
        self.control = os.path.join(folder, name)
        os.makedirs(self.control)
        self.processes = []

    def pipes(self):
        for rank in range(WORLD):
            for end in ("in", "out"):
                os.mkfifo(f"{self.control}/{self.name}.{rank}.{end}")

    def connect(self, seconds=30):
        self.inputs, self.outputs = [], []
        until = time.time() + seconds
        for rank in range(WORLD):
            while True:
                try:
                    fd = os.open(f"{self.control}/{self.name}.{rank}.in", os.O_WRONLY | os.O_NONBLOCK)
                    break
                except OSError:
                    if time.time() > until or any(p.poll() for p in self.processes):
                        raise RuntimeError(f"{self.name}: rank {rank} did not start") from None
                    time.sleep(0.02)
            os.set_blocking(fd, True)
            self.inputs.append(os.fdopen(fd, "w"))
            self.outputs.append(open(f"{self.control}/{self.name}.{rank}.out", encoding="utf-8"))
        for pipe in self.outputs:
            if not pipe.readline().startswith("hello"):
                raise RuntimeError(f"{self.name}: a rank did not get through its start")

    def turn(self, line):
        for pipe in self.inputs:
            pipe.write(line + "\n")
            pipe.flush()
        return [pipe.readline().split() for pipe in self.outputs]

    def measure(self, size, iterations, check):
        answers = self.turn(f"measure allreduce {size} in {self.memory} {self.algorithm} 1 2 {iterations} {check}")
        if any(not a or a[0] != "time" for a in answers):
            raise RuntimeError(f"{self.name}, {size} bytes: {answers}")
        self.turn("drop")
        return max(int(a[1]) for a in answers) / iterations / 1000

    def close(self):
        for pipe in getattr(self, "inputs", []):
            try:
                pipe.write("quit\n")
                pipe.close()
            except OSError:
                pass
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def start(name, algorithm, memory, folder, command_of):
    made = Contender(name, algorithm, memory, folder)
    made.pipes()
    for rank in range(WORLD):
        side = rank // PER_HOST
        command = ["ip", "netns", "exec", NAMES[side], *command_of(rank, side), "--control", made.control, "--name", name]
        made.processes.append(subprocess.Popen(command))
    made.connect()
    return made


def start_ours(build, folder, socket, provider):
    exchange = os.path.join(folder, f"exchange-{provider}")
    os.makedirs(exchange)
    name = "fabric-" + provider.replace(";", "-")

    def command(rank, side):
        return ["env", f"FABRIC_NET_TRUSTED={NETWORK}.0/24", f"FABRIC_NET_PROVIDER={provider}",
                f"{build}/bench/bench_hosts_driver", "--socket", socket, "--arena", f"{name}-{side}",
                "--exchange", exchange, "--rank", str(rank), "--world", str(WORLD)]
    return start(name, "auto", "arena", folder, command)


def start_gloo(build, folder, algorithm):
    store = os.path.join(folder, f"store-{algorithm}")
    os.makedirs(store)
    return start(f"gloo-{algorithm}", algorithm, "heap", folder, lambda rank, side: [
        f"{build}/bench/bench_peer_gloo", "--store", store, "--rank", str(rank), "--world", str(WORLD),
        "--address", f"{NETWORK}.{side + 1}"])


def start_openmpi(build, folder):
    """mpirun on the first host; its other daemon is started in the second namespace, with a host name of its own."""
    made = Contender("openmpi", "auto", "heap", folder)
    made.pipes()
    agent = os.path.join(folder, "agent")
    with open(agent, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nshift\nexec ip netns exec {NAMES[1]} unshare -u sh -c "hostname second; $*"\n')
    os.chmod(agent, 0o755)
    mpirun = shutil.which("mpirun.openmpi") or "mpirun"
    net = f"{NETWORK}.0/24"
    # More ranks than cores: without it they spin.
    command = (f"hostname first; exec {mpirun} --allow-run-as-root --mca plm_rsh_agent {agent} --oversubscribe "
               f"--mca btl tcp,vader,self --mca btl_tcp_if_include {net} --mca oob_tcp_if_include {net} "
               f"--mca mpi_yield_when_idle 1 -x OMPI_MCA_mpi_yield_when_idle=1 "
               f"-H {NETWORK}.1:{PER_HOST},{NETWORK}.2:{PER_HOST} "
               f"{build}/bench/bench_peer_openmpi --control {made.control} --name openmpi")
    made.processes.append(subprocess.Popen(["ip", "netns", "exec", NAMES[0], "unshare", "-u", "sh", "-c", command]))
    made.connect()
    return made


def start_all(build, folder, socket, chosen):
    makers = {"fabric-tcp-ofi_rxm": lambda: start_ours(build, folder, socket, "tcp;ofi_rxm"),
              "fabric-net": lambda: start_ours(build, folder, socket, "net"),
              "gloo-chunked": lambda: start_gloo(build, folder, "chunked"),
              "gloo-halving-doubling": lambda: start_gloo(build, folder, "halving-doubling"),
              "openmpi": lambda: start_openmpi(build, folder)}
    started = []
    for name, make in makers.items():
        if chosen and name not in chosen:
            continue
        try:
            started.append(make())
        except (OSError, RuntimeError) as error:
            print(f"left out: {error}", file=sys.stderr)
    return started


def iterations_for(size, rate):
    if size >= 1 << 20:
        return 2 if rate or size > 8 << 20 else 5
    return 50


def measure_all(wire, started, sizes, rates, rounds):
    times = {}
    for count in range(rounds):
        for rate in rates:
            wire.limit(rate)
            for size in sizes:
                for contender in started:
                    us = contender.measure(size, iterations_for(size, rate), int(count == 0))
                    times.setdefault((rate or "unlimited", size, contender.name), []).append(us)
    return times


def table(times, rates, sizes, names):
    lines = ["| wire | bytes | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for rate in rates:
        for size in sizes:
            cells = [f"{statistics.median(times[(rate or 'unlimited', size, name)]):.0f}" for name in names]
            lines.append(f"| {rate or 'unlimited'} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="build folder")
    parser.add_argument("--peers", help="another one, for gloo and OpenMPI")
    parser.add_argument("--sizes", default="4096,65536,1048576,8388608,33554432")
    parser.add_argument("--rates", default="1gbit,", help="of the wire; empty: unlimited")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="contenders, with commas")
    parser.add_argument("--output", help="a file for the JSON")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("namespaces need root", file=sys.stderr)
        return 77
    sizes = [int(size) for size in options.sizes.split(",")]
    rates = options.rates.split(",")
    folder = tempfile.mkdtemp(prefix="fabric-hosts-")
    wire = Wire()
    daemon = subprocess.Popen([f"{options.build}/fabricd/fabricd", f"--server-runtime-dir={folder}",
                               "--pool-backend=emu", "--pool-capacity=2GiB"], stderr=subprocess.DEVNULL)
    started = []
    try:
        time.sleep(1)
        started = start_all(os.path.abspath(options.build), folder, f"{folder}/attach.sock",
                            [name for name in options.only.split(",") if name])
        times = measure_all(wire, started, sizes, rates, options.rounds)
        names = [contender.name for contender in started]
        print(table(times, rates, sizes, names))
        if options.output:
            result = {"question": __doc__.splitlines()[0], "machine": platform.platform(), "cores": os.cpu_count(),
                      "load": os.getloadavg(), "ranks": WORLD, "hosts": 2, "rounds": options.rounds,
                      "microseconds": [{"wire": wire_name, "bytes": size, "contender": name, "rounds": values}
                                       for (wire_name, size, name), values in times.items()]}
            with open(options.output, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
                file.write("\n")
    finally:
        for contender in started:
            contender.close()
        daemon.terminate()
        daemon.wait(10)
        wire.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
