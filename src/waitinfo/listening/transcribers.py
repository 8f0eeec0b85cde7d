"""Recognisers of whole stretches: onnx-asr (Whisper, Parakeet, Canary, …) and faster-whisper."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import RATE, Samples
from waitinfo.listening.recogniser import Word
from waitinfo.text.scripts import split_words

TOKENS = 14  # that Whisper may write for a second: more is a loop
NEEDS = "pip install 'waitinfo[listen]'"
WHISPER = "onnx-community"  # whose exports of Whisper have 8-bit weights


class OnnxTranscriber:
    """A model that onnx-asr can run."""

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self._whisper = hasattr(model.asr, "_transcribe_input")
        self._languages = self._whisper or "canary" in name
        # Whisper has no times here; the others have one for each token.
        self._model = model if self._whisper else model.with_timestamps()

    def transcribe(self, samples: Samples, language: str | None) -> Sequence[Word | str]:
        given = {"language": language} if language and self._languages else {}
        if self._whisper:
            self._limit(len(samples) / RATE)
            return split_words(self._model.recognize(samples, **given))
        found = self._model.recognize(samples, **given)
        if found.tokens is None or found.timestamps is None:
            return split_words(found.text)
        return timed_words(found.tokens, found.timestamps, len(samples) / RATE)

    def _limit(self, seconds: float) -> None:
        """Let Whisper write no more than anybody can say: where it loops it writes 448 tokens."""
        asr, most = self._model.asr, 12 + round(TOKENS * seconds)
        decode = type(asr)._decoding

        def limited(features: Any, tokens: Any, max_length: int = 448) -> Any:
            return decode(asr, features, tokens, min(max_length, tokens.shape[-1] + most))

        asr._decoding = limited


def timed_words(tokens: Sequence[str], times: Sequence[float], end: float) -> list[Word]:
    """Tokens as words; a word begins at a token with a space before it, and lasts to the next."""
    words: list[tuple[str, float]] = []
    for token, time in zip(tokens, times, strict=True):
        if token.startswith(" ") or not words:
            words.append((token.strip(), time))
        else:
            words[-1] = (words[-1][0] + token, words[-1][1])
    ends = [*(time for _, time in words[1:]), end]
    longest = 1.0  # seconds: what follows is silence
    return [
        Word(text, begin, min(stop, begin + longest))
        for (text, begin), stop in zip(words, ends, strict=True)
        if text
    ]


def session_options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while they wait take the time of translation.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return options


def from_folder(folder: Path, threads: int) -> OnnxTranscriber:
    """The model in a folder, in 8 bits where it has them."""
    kind = _kind(folder)
    names = [path.name for path in folder.rglob("*.onnx")]
    suffix = next((s for s in ("int8", "quantized") if any(f"{s}.onnx" in n for n in names)), None)
    return OnnxTranscriber(folder.name, _load(kind, folder, suffix, threads))


def _kind(folder: Path) -> str:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        kind = config["model_type"]
    except FileNotFoundError:
        if list(folder.glob("*/joiner*.onnx")):
            return "kaldi-rnnt"
        raise WaitinfoError(f"{folder}: has no config.json that says which model it is") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise WaitinfoError(f"{folder / 'config.json'}: has no model_type") from None
    if not isinstance(kind, str):
        raise WaitinfoError(f"{folder / 'config.json'}: has no model_type")
    if kind == "whisper" and list(folder.glob("whisper-*_beamsearch*.onnx")):
        return "whisper-ort"
    return kind


def from_hub(name: str, threads: int) -> OnnxTranscriber:
    """A model by name: whisper-base, nemo-parakeet-tdt-0.6b-v3, or that of a repository."""
    model = f"{WHISPER}/{name}" if name.startswith("whisper-") else name
    return OnnxTranscriber(name, _load(model, None, None, threads))


def _load(model: str, folder: Path | None, suffix: str | None, threads: int) -> Any:
    try:
        import onnx_asr
    except ImportError as error:
        raise WaitinfoError(f"recognition needs {error.name}: {NEEDS}") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of each retry
    options = session_options(threads)
    # On the hub, exports in 8 bits have one of two names.
    tried = [suffix] if folder is not None else ["int8", "quantized", None]
    for place, quantization in enumerate(tried):
        try:
            return onnx_asr.load_model(
                model, folder, quantization=quantization, sess_options=options
            )
        except FileNotFoundError as error:
            if place + 1 == len(tried):
                raise WaitinfoError(f"recogniser {folder or model}: {_line(error)}") from None
        except Exception as error:  # of the hub, of onnxruntime, of the files
            raise WaitinfoError(f"recogniser {folder or model}: {_line(error)}") from None
    raise AssertionError


def _line(error: Exception) -> str:
    if type(error).__name__ == "LocalEntryNotFoundError":
        return "is not on this machine, and the Hugging Face hub cannot be reached; give a folder"
    if type(error).__name__ == "ModelNotSupportedError":
        return "unknown; give a name such as whisper-base, or a folder"
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


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
