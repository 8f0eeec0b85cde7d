"""A run that trains only the head of a veto: `waitinfo train --system veto --start-from MODEL`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.importing.sources import find_source
from waitinfo.systems.veto import Veto
from waitinfo.text.corpus import Corpus
from waitinfo.trained.folder import read_config, resolve_model
from waitinfo.trained.saving import AUTO, load_model, save_policy
from waitinfo.training.config import RunConfig
from waitinfo.training.display import Display, StageProgress
from waitinfo.training.distributed import join_processes
from waitinfo.training.head import LONGEST, SENTENCES, collect, fit
from waitinfo.training.run_folder import begin_run, merge


def trains_head(values: dict[str, Any]) -> bool:
    """Whether these settings ask for a head on a model whose weights stay as they are."""
    system, training = values.get("system"), values.get("training")
    name = system.get("name") if isinstance(system, dict) else system
    return name == Veto.name and isinstance(training, dict) and bool(training.get("start_from"))


def train_head(
    values: dict[str, Any], out: Path, resume: bool, display: Display, recipe: Path | None = None
) -> dict[str, Any]:
    """Train as `run.train` does. It takes minutes, so a run that is resumed begins again."""
    start = _model(values)
    values = merge({"model": read_config(start)["model"]}, values)
    with (
        join_processes("cpu") as processes,
        begin_run(values, out, resume, recipe, processes) as (run, corpus),
    ):
        if processes.size > 1:
            raise WaitinfoError("the head of a veto is trained by one process; start it alone")
        if run.training.threads:
            torch.set_num_threads(run.training.threads)
        sources = _sources(corpus, run.training.seed)
        title = f"training the head of a veto on {start} into {out}"
        display.start(title, [f"{len(sources):,} sentences; the model's weights stay as they are"])
        try:
            return _train(run, start, sources, out, display)
        finally:
            display.close()


def _model(values: dict[str, Any]) -> Path:
    try:
        return resolve_model(find_source(values["training"]["start_from"], "float32"))
    except WaitinfoError as error:
        raise WaitinfoError(f"training.start_from {error.sentence}") from None


def _sources(corpus: Corpus, seed: int) -> list[list[int]]:
    """Sentences of the training text, in the order of a seed."""
    usable = np.flatnonzero(corpus.train.source_lengths <= LONGEST)
    chosen = np.sort(np.random.default_rng(seed).permutation(usable)[:SENTENCES])
    tokens, lengths = corpus.train.gather(chosen, 0)
    ends = np.cumsum(lengths)
    return [tokens[end - n : end].tolist() for end, n in zip(ends, lengths, strict=True) if n]


def _train(
    run: RunConfig, start: Path, sources: list[list[int]], out: Path, display: Display
) -> dict[str, Any]:
    system, progress = run.system, StageProgress(display)
    assert isinstance(system, Veto)
    options = {**asdict(system.options), "criterion": "auto"}
    loaded = load_model(start, "cpu", AUTO, system=system.name, options=options)
    examples = collect(loaded, sources, run.training.seed, progress)
    system.head, found = fit(examples, run.training.seed, progress)
    save_policy(start, out / "best", system)
    (out / "metrics.jsonl").write_text(json.dumps({"update": 1, **found}) + "\n", "utf-8")
    display.note(
        f"on {found['examples']:,} attempts of sentences held out, of which {found['wrong']:.1%} "
        f"are wrong: AUC {found['AUC']:.3f}, loss {found['loss']:.3f}"
    )
    display.note(f"the model is {out / 'best'}: waitinfo translate --model {out} …")
    return {"updates": 0, "skipped": 0, "paused": False, **found}
