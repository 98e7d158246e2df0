"""What fabricrun starts in each process: the user's script, with the backend registered.

Importing torch takes a second, so nothing is imported before the script asks for it.
"""

import os
import runpy
import sys

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


def main():
    arguments = sys.argv[1:]
    action, is_module = register_backend, False
    while arguments and arguments[0] in ("--module", "--override-backend"):
        if arguments.pop(0) == "--module":
            is_module = True
        else:
            action = override_backend
    script = arguments[0]
    sys.argv = arguments
    after_import("torch.distributed", action)
    if is_module:
        # As `python -m` does: the current folder comes first, which -m put there for us too.
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
