"""The verbs of `waitinfo`, each a command made from a function and its options."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from waitinfo.cli.flags import VERBS, Argument, declared, find_verb, options_of

SETTING = re.compile(r"[A-Za-z_][\w.]*=")
LISTS: dict[Any, str] = {list[str]: "<str>...", list[Path]: "<path>..."}  # as help writes them


class PlainTypes:
    """A command whose help names no type for a flag without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in found:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        return found


class Root(PlainTypes, TyperGroup):
    """`waitinfo` itself."""


class Verb(PlainTypes, TyperCommand):
    """A command whose lists may follow one flag: --source a b c."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.expand(args))

    def expand(self, arguments: list[str]) -> list[str]:
        """`--source a b` as the parser wants it: `--source a --source b`.

        Where text may follow, a list ends at the first argument that is not name=value.
        """
        flags = {flag for p in self.params if getattr(p, "multiple", False) for flag in p.opts}
        text_follows = any(p.nargs == -1 for p in self.params)
        expanded: list[str] = []
        flag, values = None, 0
        for argument in arguments:
            if argument.startswith("-") and argument != "-":
                name, equals, _ = argument.partition("=")
                flag, values = (name if name in flags else None), len(equals)
            elif flag is not None:
                if values and text_follows and not SETTING.match(argument):
                    flag = None
                elif values:
                    expanded.append(flag)
                values += 1
            expanded.append(argument)
        return expanded


def parameters(options: type) -> Iterator[inspect.Parameter]:
    """The fields of an options class as parameters: its own first, then those it inherits."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    hints = declared(options)
    names = [name for kind in options.__mro__ for name in vars(kind).get("__annotations__", ())]
    for name in dict.fromkeys(names):
        default, factory = fields[name].default, fields[name].default_factory
        if factory is not dataclasses.MISSING:
            default = factory()
        elif default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        kind, option = hints[name]
        settings = dict(option.settings)
        if "[default:" in settings.get("help", ""):  # said there
            settings["show_default"] = False
        if kind in LISTS and not isinstance(option, Argument):
            settings["metavar"] = LISTS[kind]
        make = typer.Argument if isinstance(option, Argument) else typer.Option
        hint = Annotated[kind, make(*option.names, **settings)]  # type: ignore[valid-type]
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint
        )


def command(verb: Callable[[Any], None]) -> Callable[..., None]:
    """`verb(options)` as a function that takes each option by its name."""
    options = options_of(verb)

    def call(**values: Any) -> None:
        verb(options(**values))

    found = sorted(parameters(options), key=lambda p: p.default is not inspect.Parameter.empty)
    call.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
    call.__name__, call.__doc__ = verb.__name__, verb.__doc__
    return call


def _version(asked: bool) -> None:
    if asked:
        import waitinfo

        print(waitinfo.__version__)
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Simultaneous machine translation: prepare text, train systems, translate live."""


def make_app(given: Sequence[str] = ()) -> typer.Typer:
    """The command with the verb of these arguments, or with all: one verb starts sooner."""
    app = typer.Typer(
        name="waitinfo",
        help="Simultaneous machine translation: prepare text, train systems, translate live.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(cls=Root)(root)
    for name in given[:1] if given and given[0] in VERBS else VERBS:
        app.command(cls=Verb)(command(find_verb(name)))
    return app
