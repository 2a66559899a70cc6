"""Atomic replacement of a single file, on any file system: a job that fails keeps the old file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.output.swap import Place


@contextlib.contextmanager
def sink(target: Place) -> Iterator[Any]:
    """An open file, which replaces `target` when the body succeeds."""
    draft = target.parent.child(f".{target.name}-{time.time_ns()}")
    try:
        with target.files.open_output_stream(draft.path) as file:
            yield file
        target.files.move(draft.path, target.path)
    except BaseException:
        with contextlib.suppress(OSError):
            target.files.delete_file(draft.path)
        raise
