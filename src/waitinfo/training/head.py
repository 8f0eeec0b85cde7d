"""Training the head of a veto on a model whose weights stay as they are.

The labels come from the model itself; no references are used. It translates sentences of the corpus
with lower bounds, rates and vetoes that are drawn for each sentence, so along paths with errors of
its own. Every attempt to write before the source is complete is an example: the state of the
decoder, the numbers that the head sees, and the risk of the token, 1 − F(token) / max F. F is the
model's distribution of this token with the whole source read, after the same translation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.errors import WaitinfoError
from waitinfo.importing.sources import find_source
from waitinfo.model.integers.in_torch import in_torch
from waitinfo.progress import Progress
from waitinfo.streaming.decoder import Decoder, Schedule
from waitinfo.systems.interface import PolicyState, Step, for_arrays, integers
from waitinfo.systems.veto import NUMBERS, Head, Veto
from waitinfo.text.corpus import Corpus
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.trained.folder import read_config, resolve_model
from waitinfo.trained.saving import AUTO, LoadedModel, load_model, save_policy
from waitinfo.training.config import RunConfig
from waitinfo.training.display import Display, StageProgress
from waitinfo.training.distributed import join_processes
from waitinfo.training.run_folder import begin_run, merge

Array = NDArray[Any]

SENTENCES = 8_000  # that are translated, or as many as there are
LONGEST = 150  # source tokens of a sentence that is used
PASS_TOKENS = 2048  # padded, of a pass that labels
HELD_OUT = 10  # every so many-th sentence tells how good the head is

# What is drawn for each sentence. Small lags, where most is to be decided, are drawn most often.
SMALLEST_K, LARGEST_K, TOWARDS_SMALLEST = -1.0, 10.0, 1.6
RATES = 0.95, 1.25
LARGEST_VETO = 0.85  # probability that an attempt is refused

# Of the head and its training.
UNITS, DROPOUT = 64, 0.1
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 4, 512, 2e-3, 1e-2


class Exploring(Veto):
    """A veto that refuses at random, and keeps all that the head would have seen.

    A stream's dial is the number of its sentence.
    """

    name = "exploring"
    asks = ("two_best", "states")

    def __init__(self, veto: Veto, count: int, seed: int) -> None:
        super().__init__(asdict(veto.options))
        self.draw = draw = np.random.default_rng(seed)
        share = draw.random(count) ** TOWARDS_SMALLEST
        self.k = SMALLEST_K + (LARGEST_K - SMALLEST_K) * share
        self.rate = draw.uniform(*RATES, count)
        self.keep, self.veto = draw.random(count), LARGEST_VETO * draw.random(count)
        self.places: list[Array] = []  # sentence, tokens written, and the token, of every attempt
        self.seen: list[Array] = []  # numbers
        self.states: list[Array] = []

    def margin(self, state: PolicyState) -> Tensor:
        each: Any = integers(state.k)
        own = replace(state, k=self.k[each], target_info=state.target_info * self.rate[each])
        return super().margin(own)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        margin: Any = self.margin(state)
        kept = margin >= state.memory[:, 0] * self.keep[integers(state.k)]  # type: ignore[index]
        return state.complete | ((margin >= 0) & kept & (state.read >= state.written + 2))

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        each: Any = integers(state.k)
        open_ = np.asarray(state.complete) == 0
        places = np.stack([each, state.written, step.tokens], -1)
        numbers = np.stack(self.numbers(state, step), -1)
        self.places.append(places[open_])
        self.seen.append(numbers[open_].astype(np.float32))
        self.states.append(np.asarray(step.states)[open_].astype(np.float16))
        margin: Any = self.margin(state)
        return (self.draw.random(len(each)) >= self.veto[each]) | (margin >= self.options.most)


@dataclass(frozen=True, eq=False)
class Examples:
    """Attempts to write, each with the risk of its token."""

    sentence: Array  # [N]
    states: Array  # [N, d] float16
    numbers: Array  # [N, NUMBERS]
    risk: Array  # [N]


def collect(
    loaded: LoadedModel, sources: Sequence[list[int]], seed: int, progress: Progress
) -> Examples:
    """Translate sentences, and label every attempt."""
    explorer, targets = explore(loaded, sources, seed, progress)
    if not explorer.places:
        raise WaitinfoError("no token was computed before a source was complete; give more text")
    places = np.concatenate(explorer.places)
    states, numbers = np.concatenate(explorer.states), np.concatenate(explorer.seen)
    return Examples(
        places[:, 0], states, numbers, risks(loaded, sources, targets, places, progress)
    )


def explore(
    loaded: LoadedModel, sources: Sequence[list[int]], seed: int, progress: Progress
) -> tuple[Exploring, list[list[int]]]:
    """Translate sentences; the policy then has all attempts."""
    assert isinstance(loaded.system, Veto)
    system = Exploring(loaded.system, len(sources), seed)
    system.prepare(loaded.vocabulary)
    progress.stage("translating", len(sources))
    dials = [Schedule([0], [float(number)]) for number in range(len(sources))]
    found: dict[int, list[int]] = {}
    for number, hypothesis in Decoder(loaded.model, system).results(sources, dials):
        found[number] = hypothesis.tokens
        progress.advance(len(found))
    return system, [found[number] for number in range(len(sources))]


def risks(
    loaded: LoadedModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    places: Array,
    progress: Progress,
) -> Array:
    """[N] of attempts [N, 3]: sentence, tokens written, and the token."""
    risk = np.zeros(len(places), np.float32)
    order = places[:, 0].argsort(kind="stable")
    bounds = places[order, 0].searchsorted(np.arange(len(sources) + 1))
    progress.stage("labelling", len(sources))
    for done, (number, shares) in enumerate(distributions(loaded, sources, targets), 1):
        rows = order[bounds[number] : bounds[number + 1]]
        _, written, tokens = places[rows].T
        risk[rows] = 1 - shares[written, tokens] / shares.max(-1)[written]
        progress.advance(done)
    return risk.clip(0, 1)


@torch.inference_mode()
def distributions(
    loaded: LoadedModel, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> Iterator[tuple[int, Array]]:
    """The number of each pair, and the distributions [T + 1, V] with the whole source read."""
    model = in_torch(loaded.model)
    lengths = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    order = sorted(range(len(sources)), key=lambda i: lengths[i])
    while order:
        size = max(1, PASS_TOKENS // lengths[order[-1]])
        group, order = order[-size:], order[:-size]
        source = _padded([[*sources[i], EOS] for i in group])
        target = model.embed_target(_padded([[BOS, *targets[i]] for i in group]))
        ends = torch.tensor([len(sources[i]) + 1 for i in group])
        encoded = model.encode(model.embed_source(source), ends)
        visible = ends[:, None].repeat(1, target.x.shape[1])
        states = model.decode(target, encoded, visible, streaming=True).states
        for row, i in enumerate(group):
            logits = model.logits(states[row, : len(targets[i]) + 1])
            yield i, logits.float().softmax(-1).numpy()


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


class _Network(nn.Module):
    """The head in training: of standardised inputs, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(width + NUMBERS, UNITS), nn.Linear(UNITS, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.dropout(self.hidden(inputs).relu(), DROPOUT, self.training)
        return self.out(hidden)[:, 0]


def fit(examples: Examples, seed: int, progress: Progress) -> tuple[Head, dict[str, float]]:
    """A head, and how good it is on sentences that were held out."""
    torch.manual_seed(seed)
    out = examples.sentence % HELD_OUT == 0
    chosen, unseen = np.flatnonzero(~out), np.flatnonzero(out)
    if not len(chosen) or not len(unseen):
        raise WaitinfoError(f"the head needs text of {HELD_OUT} sentences or more")
    mean, deviation = _statistics(examples, chosen)
    network = _Network(examples.states.shape[1])
    steps = EPOCHS * max(1, len(chosen) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    draw = np.random.default_rng(seed)
    progress.stage("fitting", steps)
    for step in range(steps):
        some = draw.choice(chosen, BATCH)
        loss = F.binary_cross_entropy_with_logits(
            network(_inputs(examples, some, mean, deviation)),
            torch.from_numpy(examples.risk[some]),
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
        progress.advance(step + 1)
    head = _as_head(network, mean, deviation)
    states, numbers = examples.states[unseen], list(examples.numbers[unseen].T)
    return head, quality(np.asarray(head(states, numbers)), examples.risk[unseen])  # type: ignore[arg-type]


def _statistics(examples: Examples, rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of every input."""
    some = rows[:: max(1, len(rows) // 50_000)]
    inputs = np.concatenate([examples.states[some], examples.numbers[some]], -1, dtype=np.float64)
    return inputs.mean(0), inputs.std(0) + 1e-6


def _inputs(examples: Examples, rows: Array, mean: Array, deviation: Array) -> Tensor:
    inputs = np.concatenate([examples.states[rows], examples.numbers[rows]], -1, dtype=np.float64)
    return torch.from_numpy(((inputs - mean) / deviation).astype(np.float32))


@torch.no_grad()
def _as_head(network: _Network, mean: Array, deviation: Array) -> Head:
    """With the standardisation in the first layer.

    Its weights are rounded as they are stored, before the mean is taken off: some inputs vary so
    little about a large mean that the error would be larger than what they vary.
    """
    layer, out = network.hidden, network.out
    weight = (layer.weight.double().numpy() / deviation).T.astype(np.float16).astype(np.float64)
    bias = layer.bias.double().numpy() - mean @ weight
    ends = out.weight.double().numpy()[0], out.bias.double().numpy()
    return Head(weight[:-NUMBERS], weight[-NUMBERS:], bias, *ends)


def quality(found: Array, risk: Array) -> dict[str, float]:
    """How well the head tells tokens that the whole source would change from others."""
    wrong = risk > 0.5
    found = found.clip(1e-7, 1 - 1e-7)
    loss = -(risk * np.log(found) + (1 - risk) * np.log(1 - found)).mean()
    ranks = np.empty(len(found))
    ranks[found.argsort()] = np.arange(1, len(found) + 1)
    pairs = max(1, int(wrong.sum()) * int((~wrong).sum()))
    above = ranks[wrong].sum() - wrong.sum() * (wrong.sum() + 1) / 2
    return {"examples": len(risk), "wrong": wrong.mean(), "loss": loss, "AUC": above / pairs}


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
