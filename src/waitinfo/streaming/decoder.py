"""The batched decoder: many sentences at once, each at its own pace, greedily under any system.

Every sentence reads and writes exactly as it would if its words trickled in one by one: the
encoder is causal, so encoding ahead changes nothing, and what a step sees is the prefix that has
been read. The bookkeeping (who has read what) lives on the host; one transfer a step brings the
tokens and their info back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from waitinfo.errors import unknown
from waitinfo.model.transformer import DecoderCache, Transformer
from waitinfo.systems.base import Standing, Step, System
from waitinfo.text.batches import pad_sources
from waitinfo.text.tokenizer import BOS, EOS, PAD

ENDINGS = ("guard", "allow")


@dataclass(frozen=True)
class Hypothesis:
    """A translation and the record of how it came about."""

    tokens: list[int]  # without end-of-sentence
    path: list[int]  # source tokens read before each token; the last is end-of-sentence's
    source_length: int  # tokens with end-of-sentence
    source_info: list[float]  # of every source token; empty in a model without info
    target_info: list[float]  # of every target token
    ended: bool  # by end-of-sentence, not by the length limit

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before the source had been read completely."""
        return self.path[-1] < self.source_length


def length_limit(read: Tensor) -> Tensor:
    """Most tokens that may be written once so many source tokens have been read."""
    return 2 * read + 10


class Decoder:
    """Runs a system's policy over batches of tokenized sentences."""

    def __init__(
        self,
        model: Transformer,
        system: System,
        ending: str = "guard",
        batch_tokens: int = 16_000,
    ) -> None:
        if ending not in ENDINGS:
            raise unknown("ending", ending, ENDINGS)
        self.model, self.system, self.ending = model, system, ending
        self.batch_tokens = batch_tokens

    def decode(
        self,
        sentences: Sequence[list[int]],
        k: float,
        progress: Callable[[int], None] | None = None,
    ) -> list[Hypothesis]:
        """Translate token lists; results come in the order of the sentences."""
        found: dict[int, Hypothesis] = {}
        for indices in self._batches(sentences):
            batch = [sentences[i] for i in indices]
            found.update(zip(indices, self.decode_batch(batch, k), strict=True))
            if progress:
                progress(len(found))
        return [found[i] for i in range(len(sentences))]

    def _batches(self, sentences: Sequence[list[int]]) -> Iterator[list[int]]:
        """Indices of sentences of like length, longest first."""
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        while order:
            size = max(1, self.batch_tokens // (len(sentences[order[0]]) + 1))
            yield order[:size]
            order = order[size:]

    @torch.inference_mode()
    def decode_batch(self, sentences: Sequence[list[int]], k: float) -> list[Hypothesis]:
        run = _Run(self, sentences, k)
        while run.active:
            run.advance()
        return run.hypotheses()


class _Run:
    """One batch on its way. Rows are sentences; finished rows are dropped from the tensors."""

    def __init__(self, decoder: Decoder, sentences: Sequence[list[int]], k: float) -> None:
        self.model, self.system = decoder.model, decoder.system
        self.guard = decoder.ending == "guard"
        device = self.model.device
        source, lengths = pad_sources(list(sentences))
        embedded = self.model.embed_source(source.to(device))
        self.encoded = self.model.encode(embedded, lengths.to(device))
        self.lengths = lengths  # [B] of the rows still in the tensors
        self.received = self._received(embedded.info, lengths)  # [B, S + 1]
        rows = len(sentences)
        capacity = int(length_limit(lengths.max())) + 1
        self.cache = DecoderCache(self.model, rows, capacity)
        self.inputs = torch.full((rows, 1), BOS, device=device)
        zeros = torch.zeros(rows, dtype=torch.long)
        self.standing = Standing(
            k=torch.full((rows,), float(k), dtype=torch.float64),
            read=zeros,
            written=zeros.clone(),
            complete=torch.zeros(rows, dtype=torch.bool),
            source_info=torch.zeros(rows, dtype=torch.float64),
            target_info=torch.zeros(rows, dtype=torch.float64),
        )
        self.rows = torch.arange(rows)  # which sentence each row is
        self.records: list[_Record] = [_Record() for _ in sentences]
        self.all_lengths = lengths.tolist()
        self.source_info = None if embedded.info is None else embedded.info.cpu().tolist()

    @staticmethod
    def _received(info: Tensor | None, lengths: Tensor) -> Tensor:
        """Total info after reading 0, 1, … tokens."""
        if info is None:
            return torch.zeros(len(lengths), int(lengths.max()) + 1, dtype=torch.float64)
        return torch.nn.functional.pad(info.cpu().double().cumsum(-1), (1, 0))

    @property
    def active(self) -> bool:
        return len(self.rows) > 0

    def _read(self, rows: Tensor) -> None:
        """One more source token for the rows marked: [B]."""
        standing = self.standing
        standing.read = standing.read + rows.long()
        standing.complete = standing.read >= self.lengths
        standing.source_info = self.received.gather(1, standing.read[:, None])[:, 0]

    def advance(self) -> None:
        """Let every row read until it may write, compute a token each, and keep the accepted."""
        standing = self.standing
        while (waiting := ~self._may_write()).any():
            self._read(waiting)
        step, info = self._step()
        tokens = step.tokens.cpu()
        accepted = standing.complete | self.system.accept(standing, step).cpu()
        if self.guard:
            accepted &= standing.complete | (tokens != EOS)
        self._write(accepted, tokens, info)
        self._read(~accepted)
        self._drop_finished(tokens, accepted)

    def _may_write(self) -> Tensor:
        standing = self.standing
        within = standing.written < length_limit(standing.read)
        return standing.complete | ((standing.read > 0) & self.system.ready(standing) & within)

    def _step(self) -> tuple[Step, Tensor]:
        """The best next token of every row, and the info it would have."""
        standing, device = self.standing, self.model.device
        at = standing.written[:, None].to(device)
        decoded = self.model.step(
            self.model.embed_target(self.inputs, at),
            self.encoded,
            standing.read[:, None].to(device),
            self.cache,
            keys=int(standing.written.max()) + 1,
            k=standing.k.to(device),
        )
        logits = self.model.logits(decoded.states[:, -1])
        logits[:, [PAD, BOS]] = -torch.inf
        tokens = logits.argmax(-1)
        info = self.model.embed_target(tokens[:, None], at + 1).info
        summed = torch.zeros(len(tokens)) if info is None else info[:, 0].float().cpu()
        return Step(tokens, logits, decoded.extras), summed

    def _write(self, accepted: Tensor, tokens: Tensor, info: Tensor) -> None:
        standing = self.standing
        for row in accepted.nonzero().flatten().tolist():
            record = self.records[int(self.rows[row])]
            record.tokens.append(int(tokens[row]))
            record.path.append(int(standing.read[row]))
            record.info.append(float(info[row]))
        standing.written = standing.written + accepted.long()
        standing.target_info = standing.target_info + torch.where(accepted, info.double(), 0.0)
        device = self.inputs.device
        self.inputs = torch.where(
            accepted[:, None].to(device), tokens[:, None].to(device), self.inputs
        )

    def _drop_finished(self, tokens: Tensor, accepted: Tensor) -> None:
        standing = self.standing
        ended = accepted & (tokens == EOS)
        full = standing.complete & (standing.written >= length_limit(self.lengths))
        keep = (~(ended | full)).nonzero().flatten()
        if len(keep) == len(self.rows):
            return
        self.rows, self.lengths = self.rows[keep], self.lengths[keep]
        self.received = self.received[keep]
        for name, values in vars(standing).items():
            setattr(standing, name, values[keep])
        on_device = keep.to(self.model.device)
        self.inputs = self.inputs[on_device]
        self.encoded = self.encoded.select(on_device)
        self.cache.select(on_device)

    def hypotheses(self) -> list[Hypothesis]:
        return [
            record.hypothesis(length, [] if self.source_info is None else self.source_info[i])
            for i, (record, length) in enumerate(zip(self.records, self.all_lengths, strict=True))
        ]


class _Record:
    """What one row has written so far."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.path: list[int] = []
        self.info: list[float] = []

    def hypothesis(self, length: int, source_info: list[float]) -> Hypothesis:
        ended = self.tokens[-1:] == [EOS]
        count = len(self.tokens) - ended
        has_info = bool(source_info)
        return Hypothesis(
            tokens=self.tokens[:count],
            path=self.path,
            source_length=length,
            source_info=source_info[:length],
            target_info=self.info[:count] if has_info else [],
            ended=ended,
        )
