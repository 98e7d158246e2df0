"""What fabricrun starts in each process: the user's script, with the backend registered.

Importing torch takes a second, so nothing is imported before the script asks for it.
"""

import argparse
import os
import random
import runpy
import sys
import zlib

from fabricshm._lazy import after_import

_REPLACED = ("gloo", "mpi", "ucc")


def register_backend():
    import fabricshm.torch  # noqa: F401  registers itself


def override_backend():
    import torch.distributed as dist

    register_backend()
    c10d = dist.distributed_c10d
    for name in ("init_process_group", "new_group"):
        wrapped = _with_our_backend(getattr(dist, name), 0 if name == "init_process_group" else 2)
        setattr(dist, name, wrapped)
        setattr(c10d, name, wrapped)


def _ours(backend):
    return "fabricshm" if str(backend).lower() in _REPLACED else backend


def _with_our_backend(function, position):
    def replaced(*arguments, **options):
        arguments = list(arguments)
        if "backend" in options:
            options["backend"] = _ours(options["backend"])
        elif len(arguments) > position:
            arguments[position] = _ours(arguments[position])
        elif position == 0:
            options["backend"] = "fabricshm"
        return function(*arguments, **options)

    replaced.__name__ = function.__name__
    replaced.__doc__ = function.__doc__
    return replaced


def parse():
    """The options in front of the script; sys.argv becomes the script's."""
    parser = argparse.ArgumentParser(prog="fabricshm._run_script", allow_abbrev=False)
    for name in ("--module", "--override-backend", "--wrap"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--wrap-reduction", default="mean")
    parser.add_argument("--staleness", type=int, help="of a parameter server")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sys.argv = [options.script, *options.arguments]
    return options


def wrap(options):
    """Puts fabricshm.torch.wrap between the script and torch, once the script has imported it."""
    # Scripts that set no seed split their data alike on all ranks.
    seed = zlib.crc32(os.environ.get("TORCHELASTIC_RUN_ID", "").encode())

    random.seed(seed)
    after_import("numpy", lambda: sys.modules["numpy"].random.seed(seed))
    files = job_data()

    def start():
        from fabricshm.torch import wrap as wrapping
        wrapping.start(seed, options.wrap_reduction, options.staleness, files)

    after_import("torch", start)
    try:
        run(options)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
        finish()
        raise
    finish()


def job_data():
    """Of a job whose data are in the data cache: on each host one rank has them fetched while the others, and it,
    still import torch."""
    if not os.environ.get("FABRIC_JOB_CACHE"):
        return None
    from fabricshm import _job_data
    try:
        files = _job_data.opened()
    except _job_data.JobDataError as error:
        sys.exit(f"fabricrun: {error}")
    if os.environ.get("LOCAL_RANK", "0") == "0":
        files.prefetch()
    return files


def finish():
    """The script has ended well, maybe without torch."""
    wrapping = sys.modules.get("fabricshm.torch.wrap")
    if wrapping is not None:
        wrapping.finish()


def main():
    options = parse()
    after_import("torch.distributed", override_backend if options.override_backend else register_backend)
    if options.wrap:
        wrap(options)
    else:
        run(options)


def run(options):
    script = options.script
    if options.module:
        # As `python -m` does: the current folder comes first, which -m put there for us too.
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
