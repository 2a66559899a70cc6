"""How tables are made of frames, as data: no kernel and no row depends on a name that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from udfs.conversation.channels import MethodRoles
from udfs.conversation.contents import ContentsConfig
from udfs.conversation.methods import Methods
from udfs.decode.counting import Counts
from udfs.tables.handshakes import Handshake


@dataclass(frozen=True)
class Config:
    """`schemas`: the columns of each table; `roles`: what methods do; `messages`: how messages of each family are put
    together; `methods`, `counts`, `handshake`: of these tables; `arguments`: what is read of those of methods, by name
    and type; `payload`: with the bytes of content bodies; `tables`: those that are wanted."""

    schemas: Mapping[str, StructType]
    roles: MethodRoles
    messages: tuple[ContentsConfig, ...]
    methods: Methods
    counts: Counts
    handshake: Handshake
    arguments: Mapping[str, str]
    payload: bool
    tables: frozenset[str]
