"""Every name a row can carry, numbered: methods and content classes of the classic family, then the other families."""

from __future__ import annotations

from codec.amqp.tables import classic_names
from codec.amqp.tables_0_10 import segment_names
from codec.amqp.tables_1_0 import frame_names

NAMES: tuple[str, ...] = (*classic_names(), *frame_names(), *segment_names())
