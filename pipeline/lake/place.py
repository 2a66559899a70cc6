"""Where a lake is, whether it is one, and making it."""

from __future__ import annotations

import json
import posixpath

from pipeline.lake.layout import LAYOUT, OWN, LakeError
from pipeline.output.file import sink
from pipeline.output.swap import IGNORED, OutputError, Place, place

NAME = "lake.json"


def is_lake(root: Place) -> bool:
    """Whether a lake is there."""
    try:
        return NAME in (root.child(OWN).entries() or ())
    except OutputError:
        return False


def existing(uri: str) -> Place:
    """The lake at a path or URI. Raises LakeError when there is none, or one of a later layout."""
    root = _place(uri)
    if not is_lake(root):
        raise LakeError(f"{root.display_name}: is not a lake; expected a directory that `wirehare ingest` has filled")
    with root.files.open_input_stream(posixpath.join(root.path, OWN, NAME)) as file:
        try:
            layout = int(json.loads(file.read())["layout"])
        except (ValueError, KeyError, TypeError):
            raise LakeError(
                f"{root.child(OWN).child(NAME).display_name}: is damaged; expected the layout of a lake"
            ) from None
    if layout > LAYOUT:
        raise LakeError(
            f"{root.display_name}: is a lake of layout {layout}, this release reads up to {LAYOUT}; use a later release"
        )
    return root


def made(uri: str) -> Place:
    """The lake at a path or URI, made there if nothing is. Raises LakeError when something else is there."""
    root = _place(uri)
    if is_lake(root):
        return existing(uri)
    try:
        entries = set(root.entries() or ()) - IGNORED
        if entries - {OWN}:
            raise LakeError(
                f"{root.display_name}: holds {min(entries)} and is not a lake; expected an empty directory, or a lake"
            )
        if root.entries() is None:
            root.create()
            root.publish()
        own = root.child(OWN)
        if own.entries() is None:
            own.create()
            own.publish()
        with sink(own.child(NAME)) as file:
            file.write(json.dumps({"layout": LAYOUT}).encode())
    except OutputError as error:
        raise LakeError(str(error)) from error
    return root


def _place(uri: str) -> Place:
    try:
        return place(uri)
    except OutputError as error:
        raise LakeError(str(error)) from error
