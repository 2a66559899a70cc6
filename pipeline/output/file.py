"""A file that a job writes, on any file system: written aside, so that a job that fails leaves the old one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.output.swap import Place


@contextlib.contextmanager
def sink(target: Place) -> Iterator[Any]:
    """An open file, which takes the place of `target` when the body ends well."""
    draft = target.parent.child(f".{target.name}-{time.time_ns()}")
    try:
        with target.files.open_output_stream(draft.path) as file:
            yield file
        target.files.move(draft.path, target.path)
    except BaseException:
        with contextlib.suppress(OSError):
            target.files.delete_file(draft.path)
        raise
