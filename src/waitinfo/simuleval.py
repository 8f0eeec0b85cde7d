"""A SimulEval agent for any waitinfo model.

    simuleval --agent-class waitinfo.simuleval.Agent --model run --k 3 \\
        --source test.de --target test.en --output results

SimulEval sends one word at a time; the agent answers with the words that it writes. A source
without spaces is given with a space between all characters, and `--source-unit char`; a target
without spaces is measured with SimulEval's own `--eval-latency-unit char`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from simuleval.agents import TextToTextAgent
from simuleval.agents.actions import Action, ReadAction, WriteAction
from simuleval.utils import entrypoint

from waitinfo.config import system_options
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.engine import ENDINGS
from waitinfo.streaming.stream import Stream
from waitinfo.streaming.translator import load
from waitinfo.systems import load_plugins

CAPACITY = 1024  # maximum source tokens per sentence


@entrypoint
class Agent(TextToTextAgent):
    """One stream of a model, without sentence segmentation: SimulEval sends single sentences."""

    def __init__(self, args: Namespace) -> None:
        self.stream: Stream | None = None
        self._load(args, "cpu")
        super().__init__(args)

    def _load(self, args: Namespace, device: str) -> None:
        load_plugins(args.plugin)
        self.translator = load(
            args.model, device, streams=1, capacity=args.capacity, ending=args.ending,
            system=args.system, options=system_options(args.set),
        )  # fmt: skip
        self.translator.check_dial(args.k)

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        parser.add_argument("--model", help="a model folder, a run folder or a bundled model")
        parser.add_argument("--k", type=float, default=None, help="latency: higher waits longer")
        # SimulEval takes --system for an abbreviation of two options of its own.
        parser.add_argument(
            "--decoding-system", "--system", dest="system",
            help="decode with this system instead of the trained one",
        )  # fmt: skip
        parser.add_argument(
            "--plugin", nargs="*", default=[], help="Python files that define systems"
        )
        parser.add_argument(
            "--set", nargs="*", default=[], help="options of the system, such as rho_last=0.2"
        )
        parser.add_argument(
            "--source-unit", default="word", choices=("word", "char"),
            help="char: source words are the characters of a text without spaces",
        )  # fmt: skip
        parser.add_argument("--ending", default="guard", choices=ENDINGS)
        parser.add_argument(
            "--capacity", type=int, default=CAPACITY, help="maximum source tokens per sentence"
        )

    def to(self, device: str, *args: Any, **kwargs: Any) -> None:
        if device.partition(":")[0] != self.translator.device.type:
            self._load(self.args, device)

    def reset(self) -> None:
        super().reset()
        if self.stream is not None:
            self.stream.close()
        self.stream = None
        self._taken = 0  # source words

    @property
    def _characters(self) -> bool:
        return self.args.source_unit == "char"

    def policy(self) -> Action:  # type: ignore[override]
        """Push the new source words and return the words that they produce."""
        if self.stream is None:
            self.stream = self.translator.stream(self.args.k, self._characters, segment="whole")
        fresh = self.states.source[self._taken :]
        self._taken = len(self.states.source)
        ended = self.states.source_finished
        events = self.stream.push(("" if self._characters else " ").join(fresh))
        if ended:
            events += self.stream.finish()
        if any(event.sentence for event in events):
            raise WaitinfoError(
                f"a sentence is longer than {self.args.capacity} tokens; raise --capacity"
            )
        text = "".join(event.text for event in events).strip()
        # A model that may end early writes nothing more after end-of-sentence.
        ended |= any(event.kind == "WRITE" and event.token == "</s>" for event in events)
        if not text and not ended:
            return ReadAction()
        return WriteAction(text, finished=ended)
