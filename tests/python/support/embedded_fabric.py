"""A fabricd for one test: started with it, gone with it."""

import contextlib
import os


@contextlib.contextmanager
def fabric_for(backend, arena_bytes, arenas=2):
    """A daemon on an emulated pool with room for `arenas` arenas, when `backend` needs one.

    Processes forked inside find it through FABRIC_SOCKET. Nothing is started for gloo.
    """
    if backend != "fabricshm":
        yield
        return
    from fabricshm._daemon import EmbeddedDaemon

    pool_bytes = arena_bytes * arenas + (64 << 20)  # and what the daemon keeps besides them
    with EmbeddedDaemon(
        pool_bytes=pool_bytes, default_arena_bytes=arena_bytes, options=["--pool-backend", "emu"]
    ) as daemon:
        os.environ["FABRIC_SOCKET"] = daemon.socket
        try:
            yield
        finally:
            del os.environ["FABRIC_SOCKET"]
