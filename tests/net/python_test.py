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
        well = bool((data == 10).all()) and bool((outside == numpy.arange(10)).all())
        pipe.send(well and parts_are_right(group, rank) and messages_are_right(group, rank))


def row(rank, peer, count=1000):
    """What rank `rank` gives to rank `peer`."""
    return numpy.arange(count, dtype="int64") + 10_000 * rank + 100_000 * peer


def parts_are_right(group, rank):
    everyone = range(WORLD)
    mine = numpy.concatenate([row(rank, peer) for peer in everyone])
    exchanged = group.all_to_all(mine)
    well = numpy.array_equal(exchanged, numpy.concatenate([row(peer, rank) for peer in everyone]))
    for root in everyone:
        gathered = group.gather(row(rank, root), root=root)
        part = numpy.empty(1000, "int64")
        group.scatter(part, mine if rank == root else None, root=root)
        well = well and numpy.array_equal(part, row(root, rank))
        if rank == root:
            wanted = numpy.concatenate([row(peer, root) for peer in everyone])
            well = well and numpy.array_equal(gathered.ravel(), wanted)
    summed = group.scan(row(rank, 0).copy())
    well = well and numpy.array_equal(summed, sum(row(peer, 0) for peer in range(rank + 1)))
    before = group.exscan(row(rank, 0).copy())
    below = sum(row(peer, 0) for peer in range(rank)) if rank else row(0, 0)
    return bool(well and numpy.array_equal(before, below))


def messages_are_right(group, rank):
    others = [peer for peer in range(WORLD) if peer != rank]
    came = {peer: numpy.empty(50_000, "int64") for peer in others}
    requests = [group.recv(came[peer], peer, tag=1, async_op=True) for peer in others]
    for peer in others:
        group.send(row(rank, peer, 50_000), peer, tag=1)
    for request in requests:
        request.wait()
    well = all(numpy.array_equal(came[peer], row(peer, rank, 50_000)) for peer in others)
    for peer in others:
        group.send(row(rank, peer), peer, tag=2)
    sources = []
    for _ in others:
        any_row = numpy.empty(1000, "int64")
        sources.append(group.recv(any_row, tag=2))
        well = well and numpy.array_equal(any_row, row(sources[-1], rank))
    return bool(well and sorted(sources) == others)


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
