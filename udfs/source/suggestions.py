"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar, get_args, get_type_hints

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
    """Decorator: the TypeError about an unknown keyword suggests the nearest one. The signature shows the keywords of
    `**options: Unpack[SomeTypedDict]`, which are None by default."""
    whole = signature(function)
    known = {name: each for name, each in whole.parameters.items() if each.kind is not Parameter.VAR_KEYWORD}
    for name in whole.parameters.keys() - known.keys():
        (options,) = get_args(get_type_hints(function)[name])
        for option, kind in get_type_hints(options).items():
            known[option] = Parameter(option, Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    @wraps(function)
    def checked(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        for name in keywords:
            if name not in known:
                hint = meant(name, known)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*arguments, **keywords)

    checked.__signature__ = whole.replace(parameters=list(known.values()))  # type: ignore[attr-defined]
    return checked
