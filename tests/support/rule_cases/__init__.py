"""Cases of the rules, one module a group: each has `CASES`, a table with one row a case: rule, version,
what breaks it, what conforms, what the finding must show."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from rule_support import CaptureCase, Case, speaking, spoken


def cases_of(*modules: str) -> list[Case]:
    """The cases of these modules, of all where none is named."""
    found = modules or sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [case for name in found for case in importlib.import_module(f"{__name__}.{name}").CASES]


def cases_spoken_in(version: str) -> list[Case]:
    """The cases that name no version, in this one of the classic family, as far as it has what they send."""
    as_written = cases_of()
    own = {name: module for name, module in sys.modules.items() if name.startswith(f"{__name__}.")}
    try:
        for name in own:
            del sys.modules[name]
        with speaking(version):
            translated = cases_of()
    finally:
        sys.modules.update(own)
    return [
        there
        for here, there in zip(as_written, translated, strict=True)
        if here.version == spoken() and there.version == version and not there.lacks
    ]


def capture_cases() -> list[CaptureCase]:
    """The cases of rules about captures as a whole."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return [case for module in modules for case in getattr(module, "CAPTURE_CASES", ())]
