"""Processes that do to fabricd what a hostile client may, as fast as they can, until SIGTERM."""

import os
import random
import signal
import socket
import struct

# libfabricshm/proto/messages.hpp.
MAGIC, VERSION, MESSAGE_BYTES = 0x46425243, 1, 512
HELLO, ARENA_OPEN, BYE, LAST_TYPE = 1, 2, 14, 22
HALF_OPEN = 200  # of one attacker at a time; a user may have 256

_stop = False


def _on_end(_number, _frame):
    global _stop  # pylint: disable=global-statement
    _stop = True


def _message(kind, body):
    header = struct.pack("=IHHQii", MAGIC, VERSION, kind, 1, 0, 0)
    return (header + body).ljust(MESSAGE_BYTES, b"\0")


_HELLO = _message(HELLO, bytes(40) + b"hostile")


class Attacker:
    """`open_connections` are kept when there are such; `count` counts all that were made."""

    def __init__(self, path, connections, seed):
        self.path = path
        self.wanted = connections
        self.random = random.Random(seed)
        self.count = 0
        self.kept = []

    def connect(self):
        """A connection, or nothing when there is no room for one now."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            client.connect(self.path)
        except OSError:
            client.close()
            os.sched_yield()
            return None
        self.count += 1
        return client

    def say(self, client, message):
        """Whether it could be sent."""
        try:
            client.send(message)
            return True
        except OSError:
            return False

    def attach(self):
        """A connection that was greeted, or nothing."""
        client = self.connect()
        if client is None:
            return None
        client.settimeout(5)
        try:
            client.send(_HELLO)
            client.recv(MESSAGE_BYTES)
        except OSError:
            client.close()
            return None
        client.setblocking(False)
        return client

    def storm(self):
        """Attaches, opens an arena, and goes without a goodbye."""
        client = self.attach()
        if client is None:
            return
        name = b"hostile%d" % self.random.randrange(8)
        self.say(client, _message(ARENA_OPEN, name.ljust(64, b"\0") + struct.pack("=Q", 1 << 20)))
        client.close()

    def half_open(self):
        """Connects and says nothing."""
        client = self.connect()
        if client is not None:
            self.kept.append(client)
        if len(self.kept) > HALF_OPEN:
            self.kept.pop(0).close()

    def garbage(self):
        """Random bytes, or random fields in requests of every type."""
        client = self.attach() if self.count % 2 else self.connect()
        if client is None:
            return
        for _ in range(4):
            noise = self.random.randbytes(MESSAGE_BYTES - 24)
            if not self.say(client, _message(2 + self.random.randrange(LAST_TYPE - 1), noise)):
                break
        self.say(client, self.random.randbytes(1 + self.random.randrange(1000)))
        client.close()

    def held(self):
        """Requests with random fields from all of many sessions, whose answers are read."""
        client = self.kept[self.random.randrange(len(self.kept))]
        kind = 2 + self.random.randrange(LAST_TYPE - 1)
        if kind == BYE:
            return
        self.say(client, _message(kind, self.random.randbytes(MESSAGE_BYTES - 24)))
        try:
            while client.recv(MESSAGE_BYTES):
                pass
        except OSError:
            pass

    def fill(self):
        """The sessions that held() speaks from."""
        while len(self.kept) < self.wanted and not _stop:
            client = self.attach()
            if client is not None:
                self.kept.append(client)


def attack(kind, path, connections, seed):
    """Says "up" when it has begun, and at its end how many connections it made."""
    signal.signal(signal.SIGTERM, _on_end)
    attacker = Attacker(path, connections, seed)
    if kind == "held":
        attacker.fill()
    step = getattr(attacker, kind.replace("-", "_"))
    print("up", flush=True)
    while not _stop:
        step()
    print(attacker.count, flush=True)


def burn():
    """A processor's time and nothing else."""
    signal.signal(signal.SIGTERM, _on_end)
    print("up", flush=True)
    while not _stop:
        pass
    print(0, flush=True)
