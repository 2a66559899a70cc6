"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def meant(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'ports'?" for 'prots'; '' where no known name is near."""
    by_small_letters = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_small_letters, n=1)
    return f"; did you mean {by_small_letters[near[0]]!r}?" if near else ""


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """A line about an unknown name of a `kind`: the nearest of the `known` names, and all of them."""
    hint, names = meant(name, known), ", ".join(known)
    expected = f"{hint} Expected one of {names}" if hint else f"; expected one of {names}"
    return f"there is no {kind} {name!r}{expected}"


def suggesting(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: the TypeError about an unknown keyword suggests the nearest one."""
    known = [
        name
        for name, parameter in signature(function).parameters.items()
        if parameter.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]

    @wraps(function)
    def checked(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        for name in keywords:
            if name not in known:
                hint = meant(name, known)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*arguments, **keywords)

    return checked
