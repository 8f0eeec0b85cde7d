"""A speech processor for simulstream: IWSLT's tools run and score us through it.

    type: waitinfo.simulstream.SpeechProcessor
    model: de-en
    recogniser: whisper-base
    speech_chunk_size: 0.5
    latency_unit: word
    detokenizer_type: simuleval

`k` or `lag`, `every` and `threads` are optional. Words are never taken back.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from simulstream.server.speech_processors import SpeechProcessor as Base
from simulstream.server.speech_processors.incremental_output import IncrementalOutput

from waitinfo.errors import WaitinfoError
from waitinfo.listening.listen import Listener, SpeechEvent
from waitinfo.listening.loading import DEFAULT, load_recogniser
from waitinfo.listening.recogniser import Recogniser
from waitinfo.listening.sources import Recording
from waitinfo.streaming.translator import Translator, load


class SpeechProcessor(Base):
    """Recognises and translates; see the module."""

    recogniser: ClassVar[Recogniser]
    translator: ClassVar[Translator]

    @classmethod
    def load_model(cls, config: SimpleNamespace) -> None:
        given = vars(config)
        every, threads = given.get("every"), given.get("threads", 0)
        cls.recogniser = load_recogniser(given.get("recogniser", DEFAULT), every, threads)
        cls.translator = load(given.get("model"), streams=1)

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config)
        self._listener: Listener | None = None
        self._characters = vars(config).get("latency_unit", "word") == "char"

    def process_chunk(self, waveform: Any) -> IncrementalOutput:
        return self._written(self._open().hear(waveform))

    def end_of_stream(self) -> IncrementalOutput:
        return self._written(self._open().finish())

    def clear(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def set_source_language(self, language: str) -> None:
        _check(language, self.translator.loaded.languages.source, "from")

    def set_target_language(self, language: str) -> None:
        _check(language, self.translator.loaded.languages.target, "into")

    def tokens_to_string(self, tokens: list[str]) -> str:
        return ("" if self._characters else " ").join(tokens)

    def _open(self) -> Listener:
        if self._listener is None:
            given = vars(self.config)
            # It comes at the processor's own pace: nothing is skipped.
            voice = self.recogniser.voice(self.translator.loaded.languages.source, live=False)
            stream = self.translator.stream(
                given.get("k"), raw=True, history=0, lag=given.get("lag")
            )
            self._listener = Listener(Recording(()), voice, stream)
        return self._listener

    def _written(self, events: Any) -> IncrementalOutput:
        found: list[SpeechEvent] = [event for event in events if event.kind == "WRITE"]
        text = "".join(event.text for event in found)
        tokens = list(text) if self._characters else text.split()
        return IncrementalOutput(tokens, self.tokens_to_string(tokens), [], "")


def _check(language: str, own: str | None, way: str) -> None:
    if own is not None and language.split("-", maxsplit=1)[0].lower() != own:
        raise WaitinfoError(f"{language}: the model translates {way} {own}")
