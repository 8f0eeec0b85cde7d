"""What `capacity.py` measures: a translator with a trained model, random weights, or none."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from waitinfo import Translator
from waitinfo.model import SIZES, ModelConfig, Transformer
from waitinfo.model.integers.measuring import with_integers
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.event import Observer
from waitinfo.streaming.recorded import RecordedBackend
from waitinfo.streaming.recorded.steps import FED, LAST, MAY_WRITE, RESTARTED, WROTE, Bounds
from waitinfo.streaming.scheduler import Scheduler
from waitinfo.systems import build_system
from waitinfo.text.special import EOS, SPECIALS
from waitinfo.text.tokenizer import Vocabulary
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import LoadedModel, load_model

END = 1 / 6  # share of end-of-sentence in random text: K = 5 leaves about so many words
END_BIAS = 3.1  # about one in six random logits is above the largest of all others
OPUS = "opus-mt"
LAG = 5  # tokens, of the policy without a model
TINY = {"width": 16, "ffn": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 1}


def build_translator(options: argparse.Namespace, streams: int, observer: Observer) -> Translator:
    """A translator for so many streams."""
    folder = find_model(options.model)
    if options.size is None and not options.host_only:
        loaded = load_model(folder, options.device, options.dtype, system=options.system)
        return Translator(loaded, streams, observer=observer, segment="punctuation")
    if options.size == OPUS:
        loaded = published_model(Vocabulary.load(folder), options.system or "wait-k")
        return Translator(loaded, streams, observer=observer, segment="punctuation")
    sizes = TINY if options.host_only else SIZES[options.size]
    loaded = random_model(Vocabulary.load(folder), sizes)
    if not options.host_only:
        dtype = "float32" if options.dtype == "auto" else options.dtype
        loaded.model.to(options.device, getattr(torch, dtype))
        return Translator(loaded, streams, observer=observer, segment="punctuation")
    translator = Translator(loaded, 1)
    backend = partial(RecordedBackend, reserved=16)
    engine = Engine(loaded.model, loaded.system, streams, backend=backend)
    engine.backend.steps = NoModel(streams, len(loaded.vocabulary.target))  # type: ignore[attr-defined]
    translator._scheduler = Scheduler(engine, observer)
    return translator


class RandomText(Transformer):
    """Random weights that write random words, and end about as late as a trained model does.

    Random weights alone repeat themselves and never end. Here the next token is drawn by a hash of
    the decoder's states, after everything was computed as usual. Before the source is complete, the
    engine refuses end-of-sentence, which costs steps: a trained model needs fewer.
    """

    def logits(self, states: Tensor) -> Tensor:
        logits = super().logits(states)
        drawn = (states.float().sum(-1, keepdim=True) * 997).frac().abs()
        tokens = SPECIALS + (drawn * (logits.shape[-1] - SPECIALS - 1)).long()
        tokens = tokens.masked_fill((drawn * 7919).frac() < END, EOS)
        return logits.scatter(-1, tokens, 1e4)


def random_model(vocabulary: Vocabulary, sizes: dict[str, int]) -> LoadedModel:
    torch.manual_seed(0)
    count = len(vocabulary.source), len(vocabulary.target)
    model = RandomText(ModelConfig(*count, **sizes, info="attention", joint=vocabulary.joint))
    return LoadedModel(model.eval(), build_system("wait-info"), vocabulary, Path("random"))


def published_model(vocabulary: Vocabulary, system: str) -> LoadedModel:
    """The shape of most OPUS-MT models, of random 8-bit integers: every prefix is encoded again.

    The bias lets it end about as late as a trained model does.
    """
    torch.manual_seed(0)
    count = len(vocabulary.source), len(vocabulary.target)
    shape = {"encoder": "bidirectional", "activation": "swish", "info": "none"}
    config = ModelConfig(
        *count, **SIZES["base"], **shape, norm="post", output_bias=True, joint=vocabulary.joint
    )
    model = Transformer(config).eval()
    model.output_bias.data[EOS] = END_BIAS
    return LoadedModel(with_integers(model), build_system(system), vocabulary, Path("random"))


class NoModel:
    """The steps of an engine that computes nothing: wait-k with random tokens, on the host."""

    def __init__(self, slots: int, vocabulary: int) -> None:
        self.read = np.zeros(slots + 1, np.int64)
        self.written = np.zeros(slots + 1, np.int64)
        self.ended = np.zeros(slots + 1, bool)
        self.draw = np.random.default_rng(0)
        self.vocabulary = vocabulary

    def encode(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        out.fill_(1.0)

    def write(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        slot, length, encoded, flags = inputs[:4].long().numpy()
        fresh = flags & RESTARTED > 0
        inputs[3] %= RESTARTED
        going = fresh | ~self.ended[slot]
        read = np.minimum(encoded, np.where(fresh, 0, self.read[slot]) + bounds.window - 1)
        written = np.where(fresh, 0, self.written[slot])
        complete = (flags & FED > 0) & (read == length)
        wrote = going & (complete | (read - written >= LAG))
        tokens = self.draw.integers(SPECIALS, self.vocabulary, len(slot))
        tokens = np.where(complete & (written >= read - 1), EOS, tokens)
        last = wrote & (tokens == EOS)
        written = written + wrote
        self.read[slot], self.written[slot], self.ended[slot] = read, written, ~going | last
        may = going & ~last & (complete | (read - written >= LAG))
        out[0], out[1] = torch.from_numpy(read), torch.from_numpy(read)
        out[2] = torch.from_numpy(wrote * WROTE + last * LAST + may * MAY_WRITE)
        out[3] = torch.from_numpy(tokens)
        out[4] = 1.0
        out[5] = torch.from_numpy(written)
