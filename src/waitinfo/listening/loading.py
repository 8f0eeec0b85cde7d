"""Recognisers by name or folder.

| written | is |
|---|---|
| a folder | the kind that its files are of |
| whisper-base, nemo-parakeet-tdt-0.6b-v3, owner/name | a model of the hub, by onnx-asr |
| faster-whisper:small | by faster-whisper |
| vosk:de, vosk:vosk-model-small-de-0.15 | a model of Vosk |
| module:factory | `factory()` of a Python module: a `Recogniser` or a `Transcriber` |
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

from waitinfo.errors import WaitinfoError
from waitinfo.listening.activity import Activity, Loudness, Silero
from waitinfo.listening.recogniser import Recogniser, Transcriber
from waitinfo.listening.redecoding import EVERY, Redecoding

DEFAULT = "whisper-base"
SILERO = "silero_vad.onnx"
KINDS = ("onnx-asr", "faster-whisper", "vosk")


def load_recogniser(
    name: str | Path = DEFAULT, every: float | None = None, threads: int = 0
) -> Recogniser:
    """A recogniser by name or folder; see the table above.

    `every`: seconds of audio between two looks at the open words, for recognisers that are not of
    streams. `threads`: of the CPU; 0 for those that there are.
    """
    if every is not None and not 0.1 <= every <= 20:
        raise WaitinfoError(f"--every {every:g}: must be from 0.1 to 20 seconds")
    threads = threads or len(os.sched_getaffinity(0))
    folder = Path(name)
    kind, colon, rest = str(name).partition(":")
    found: Transcriber | Recogniser
    if folder.is_dir():
        found = _from_folder(folder, threads)
    elif folder.exists():
        raise WaitinfoError(f"recogniser {name}: is a file; give a folder or a name")
    elif colon:
        found = _of_kind(kind, rest, threads)
    elif os.sep in str(name) and (str(name).startswith((".", os.sep)) or str(name).count("/") > 1):
        raise WaitinfoError(f"recogniser {name}: no such folder")
    else:
        found = _of_kind("onnx-asr", str(name), threads)
    if not isinstance(found, Transcriber):
        return found
    return Redecoding(found, every or EVERY, _activity(folder if folder.is_dir() else None))


def _from_folder(folder: Path, threads: int) -> Transcriber | Recogniser:
    """What the files of a folder are."""
    if (folder / "am" / "final.mdl").exists() or (folder / "final.mdl").exists():
        from waitinfo.listening.vosk import VoskRecogniser

        return VoskRecogniser(str(folder), folder=True)
    if (folder / "model.bin").exists() and (folder / "config.json").exists():
        return _of_kind("faster-whisper", str(folder), threads)
    if any(path.name != SILERO for path in folder.rglob("*.onnx")):
        from waitinfo.listening.transcribers import from_folder

        return from_folder(folder, threads)
    raise WaitinfoError(
        f"recogniser {folder}: no model of onnx-asr (.onnx), Vosk (am/final.mdl) or "
        "faster-whisper (model.bin) is in it"
    )


def _of_kind(kind: str, name: str, threads: int) -> Transcriber | Recogniser:
    if not name:
        raise WaitinfoError(f"recogniser {kind}:: the name is missing")
    if kind == "onnx-asr":
        from waitinfo.listening.transcribers import from_hub

        return from_hub(name, threads)
    if kind == "faster-whisper":
        from waitinfo.listening.transcribers import WhisperTranscriber

        return WhisperTranscriber(name, threads)
    if kind == "vosk":
        from waitinfo.listening.vosk import VoskRecogniser

        return VoskRecogniser(name, folder=False)
    try:
        factory: Callable[[], Transcriber | Recogniser] = getattr(
            importlib.import_module(kind), name
        )
    except (ImportError, AttributeError, ValueError):
        raise WaitinfoError(
            f"recogniser {kind}:{name}: unknown; use a folder, the name of a model, "
            f"{', '.join(f'{k}:NAME' for k in KINDS[1:])}, or module:factory"
        ) from None
    return factory()


def _activity(folder: Path | None) -> Callable[[], Activity]:
    """Silero's network if it lies beside the model, else loudness."""
    path = None if folder is None else folder / SILERO
    if path is None or not path.exists():
        return Loudness
    return lambda: Silero(path)
