"""Every name a row can carry, numbered: methods and content classes of the classic family, then the other families."""

from __future__ import annotations

from codec.amqp.classic.tables import classic_names
from codec.amqp.versions import fact_table


def _frame_names() -> tuple[str, ...]:
    """Names of the performatives and SASL frames of 1.0."""
    facts = fact_table("1.0")
    of_frames = {entry["name"] for entry in (*facts["performatives"], *facts["sasl_frames"])}
    return tuple(entry["name"] for entry in facts["descriptor_index"] if entry["name"] in of_frames)


def _segment_names() -> tuple[str, ...]:
    """Names of the controls and commands of 0-10, with those of their classes."""
    return tuple(
        f"{of_class['name']}.{entry['name']}"
        for of_class in fact_table("0-10")["classes"]
        for group in ("controls", "commands")
        for entry in of_class.get(group, ())
    )


NAMES: tuple[str, ...] = (*classic_names(), *_frame_names(), *_segment_names())
