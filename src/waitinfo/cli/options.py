"""Options that several commands share, and reading their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waitinfo.errors import WaitinfoError

ModelFolder = Annotated[
    Path | None,
    typer.Option(help="A model or run folder, or a bundled one's name [default: de-en]."),
]
DecodingSystem = Annotated[
    str | None, typer.Option(help="Decode with this system [default: the one it was trained with].")
]
DecodingSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option of the system, for example rho_last=0.2."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Precision = Annotated[
    str,
    typer.Option(
        help="float32, bfloat16, float16, or int8 on a CPU [default: int8 for packed models "
        "on a CPU, else float32].",
        show_default=False,
    ),
]
Threads = Annotated[int, typer.Option(help="CPU threads [default: torch's own choice].")]


def numbers(option: str, text: str | None) -> list[float | None]:
    """`1,3,5` as numbers, each once; [None] where nothing was given."""
    if text is None:
        return [None]
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise WaitinfoError(
            f"{option} {text}: give numbers separated by commas, as 1,3,5"
        ) from None
