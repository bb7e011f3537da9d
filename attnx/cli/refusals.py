"""What the system refused (memory, threads, disk, names of files), as errors of ours."""

from __future__ import annotations

import errno

from attnx.cli.containment import memory_limit
from attnx.errors import AttnxError, RunError, UsageError, lacks_memory
from attnx.wording import Wording

_UNSAID = ("error return without exception set", "without setting an exception")
"""What Python says where a library was refused memory and did not say so."""
_FREE = "Free some memory, or raise the limit that this process was given: ulimit -a shows it."


def of_system(error: Exception) -> AttnxError | None:
    """A refusal by the system (memory, disk, names of files) as one of our errors; None for a bug."""
    if isinstance(error, MemoryError):
        return RunError(
            "there is not enough memory for this",
            Wording("Use a shorter text[, or fewer layers (<layers>)]."),
        )
    if isinstance(error, ImportError) and lacks_memory(error):
        what = f"the package {error.name.partition('.')[0]}" if error.name else "a library"
        return RunError(f"there is not enough memory to load {what}", _FREE)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return RunError("the system lets this process start no more threads", _FREE)
    unsaid = isinstance(error, SystemError) and any(said in str(error) for said in _UNSAID)
    if lacks_memory(error) or (unsaid and memory_limit() is not None):
        return RunError("there is not enough memory for this", _FREE)
    if not isinstance(error, OSError) or error.errno is None:
        return None
    what = f"{shortened(str(error.filename), 200)}: " if error.filename is not None else ""
    said = f"{what}{error.strerror or error}"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return UsageError(said, "Give another path.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EBADF):
        where = "the output" if error.filename is None else f"{shortened(str(error.filename), 200)}"
        return RunError(f"{where} cannot be written: {error.strerror}", "Free some space, or write it elsewhere.")
    return RunError(said, "Check that path, and who may read and write it.") if what else None


def shortened(text: str, most: int) -> str:
    """The text, without its middle if it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 3 :]}"


__all__ = ["of_system", "shortened"]
