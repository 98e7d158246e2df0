#!/usr/bin/python3
"""Groups over several hosts in Python: four ranks in two pools, with an exchange through pipes."""

import multiprocessing
import sys

import numpy

import fabricshm
from fabricshm._daemon import EmbeddedDaemon

WORLD = 4


def exchange_over(pipe):
    """An all-gather by way of the parent."""
    def exchange(mine):
        pipe.send(mine)
        return pipe.recv()
    return exchange


def rank_main(socket, rank, pipe):
    with fabricshm.Session(socket) as session:
        arena = session.arena(f"pool{rank // 2}", bytes=64 << 20)
        group = arena.join("group", rank, WORLD, exchange=exchange_over(pipe), trusted="127.0.0.0/8")
        data = arena.zeros(100_000)
        data += rank + 1
        group.all_reduce(data)
        outside = numpy.arange(10, dtype="float64")
        group.all_reduce(outside, op="avg")
        pipe.send(bool((data == 10).all()) and bool((outside == numpy.arange(10)).all()))


def failing_main(socket, rank, pipe):
    def exchange(_):
        raise RuntimeError("no store")
    with fabricshm.Session(socket) as session:
        arena = session.arena("alone", bytes=16 << 20)
        try:
            arena.join("group", rank, WORLD, exchange=exchange)
        except RuntimeError as error:
            pipe.send(str(error) == "no store")


def main():
    context = multiprocessing.get_context("spawn")
    with EmbeddedDaemon() as daemon:
        pipes, children = [], []
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            pipes.append(ours)
            children.append(context.Process(target=rank_main, args=(daemon.socket, rank, theirs)))
            children[-1].start()
        for _ in range(2):
            gathered = [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send(gathered)
        results = [pipe.recv() for pipe in pipes]
        ours, theirs = context.Pipe()
        children.append(context.Process(target=failing_main, args=(daemon.socket, 0, theirs)))
        children[-1].start()
        results.append(ours.recv())
        for child in children:
            child.join()
    print(results)
    return 0 if results == [True] * (WORLD + 1) else 1


if __name__ == "__main__":
    sys.exit(main())
