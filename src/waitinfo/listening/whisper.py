"""Whisper by faster-whisper, whose words have times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import Samples
from waitinfo.listening.recogniser import Word


class WhisperTranscriber:
    """A model of CTranslate2; `model` is a folder or a name as faster-whisper has it."""

    def __init__(self, model: str, threads: int) -> None:
        try:
            from faster_whisper import WhisperModel
        except ImportError:
            raise WaitinfoError(
                "faster-whisper is not installed: pip install faster-whisper"
            ) from None
        self.name = model
        try:
            self._model: Any = WhisperModel(
                model, device="auto", compute_type="int8", cpu_threads=threads
            )
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise WaitinfoError(f"recogniser {model}: {lines[0]}") from None

    def transcribe(self, samples: Samples, language: str | None) -> Sequence[Word | str]:
        segments, _ = self._model.transcribe(
            samples, language=language, beam_size=1, word_timestamps=True, temperature=0.0,
            condition_on_previous_text=False, without_timestamps=True,
        )  # fmt: skip
        return [
            Word(word.word.strip(), word.start, word.end)
            for segment in segments
            for word in segment.words or ()
            if word.word.strip()
        ]
