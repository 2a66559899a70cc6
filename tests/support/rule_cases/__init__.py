"""Cases of the rules, one module a group: each has `CASES`."""

from __future__ import annotations

import importlib
import pkgutil

from rule_support import CaptureCase, Case


def cases_of(*modules: str) -> list[Case]:
    """The cases of these modules, of all where none is named."""
    found = modules or sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [case for name in found for case in importlib.import_module(f"{__name__}.{name}").CASES]


def capture_cases() -> list[CaptureCase]:
    """The cases of rules about captures as a whole."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return [case for module in modules for case in getattr(module, "CAPTURE_CASES", ())]
