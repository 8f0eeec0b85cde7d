"""Compilation of the parts of a model that training spends its time in.

Layers are compiled one by one, for any shape: all encoder layers share one compiled code, all
decoder layers another, which takes a minute instead of the many of a whole model or every shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from waitinfo.model.loss import token_terms
from waitinfo.model.transformer import Transformer


def compile_model(model: Transformer, note: Callable[[str], None]) -> bool:
    """Compile a model in place; False, and a note why, where that is not possible."""
    problem = compiler_problem(model.device)
    if problem:
        note(f"cannot compile ({problem}); training without")
        return False
    for layer in (*model.encoder_layers, *model.decoder_layers):
        layer.compile(dynamic=True)
    model.token_terms = torch.compile(token_terms, dynamic=True)
    return True


def compiler_problem(device: torch.device) -> str | None:
    """Why this machine cannot compile, if so; detected by compiling a trivial function."""
    try:
        double = torch.compile(lambda x: x * 2 + 1)
        double(torch.ones(8, device=device))
    except Exception as error:
        return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
    return None
