"""Scripts for one process on several ranks, unchanged: fabricrun --wrap. docs/unchanged_scripts.md."""

_wrapping = None


def start(seed, reduction="mean", staleness=None, files=None):
    """Once torch is there, and before the script uses it. staleness: of a parameter server; None: allreduce. files: the
    JobData; None: the job has none in the data cache."""
    global _wrapping
    import torch

    from ._wrapping import Wrapping, install

    torch.manual_seed(seed)
    serving = None
    if staleness is not None:
        from ._serving import Serving
        serving = Serving(staleness)
    _wrapping = Wrapping(reduction, serving, files)
    install(_wrapping)


def is_on():
    """Whether the script is one for one process, which the ranks share."""
    return _wrapping is not None and not _wrapping.is_off


def finish():
    """After the script has ended well."""
    if _wrapping is not None:
        _wrapping.finish()
