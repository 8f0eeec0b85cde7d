"""Sentence segmentation: where a stream of words is divided, without looking at the next word.

| mode | a sentence ends |
|---|---|
| punctuation | at . ! ? and the like |
| pause | where no word came for some time |
| none | nowhere: the model sees a sliding window of the last words |
| auto | at . ! ? where the text has them, else nowhere |
| whole | with the text: all of it is one sentence |

`auto` takes a text for punctuated from one sentence end to the next capacity of source tokens
without one, and for unpunctuated from a whole window without a sentence end to the next one. At the
beginning, a window decides.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from waitinfo.errors import WaitinfoError, unknown

CLOSERS = "\"'’”“»«›‹)]}*_」』）】"
ENDS = "!?…。！？؟۔।॥"
# Abbreviations, which end in a full stop inside a sentence. In lower case, without the full stop.
GERMAN = """abb abs abt bd bsp bspw bzgl bzw ca d.h dgl dr etc evtl fr ggf hr hrsg inkl jh jhd
    kap mio mrd nr o.ä prof rd s.o s.u sog st str tel u.a u.u usw v.a vgl z.b z.t zzgl"""
ENGLISH = """a.m al approx assn ave capt cf cmdr co col corp dept dr e.g est fig gen gov hon i.e
    inc jr lt ltd maj messrs mr mrs ms mt p.m pp prof rep rev sen sgt sr st vol vs"""
OTHERS = "gs mlle mme pgs sra srta ths tp ts ud"  # titles in French, Spanish and Vietnamese
ABBREVIATIONS = frozenset(f"{GERMAN} {ENGLISH} {OTHERS}".split())
DOTTED = re.compile(r"(\w\.)+\w?")  # letters separated by full stops: z.B, U.S, e.g
ORDINAL = re.compile(r"[\W_]*\d{1,2}")  # days ("am 3. Mai") do not end a sentence, years do


def ends_sentence(word: str) -> bool:
    """Whether a sentence ends with this word."""
    core = word.rstrip(CLOSERS)
    if not core:
        return False
    if core[-1] in ENDS:
        return True
    if core[-1] != ".":
        return False
    stem = core.rstrip(".")
    if len(core) - len(stem) > 1:
        return True  # an ellipsis
    stem = stem.lstrip(CLOSERS + "([{„‚¿¡-–—")
    if not stem or stem.lower() in ABBREVIATIONS or ORDINAL.fullmatch(stem):
        return False
    initial = len(stem) == 1 and stem.isalpha()
    return not (initial or DOTTED.fullmatch(stem))


MODES = ("auto", "punctuation", "pause", "none", "whole")
WINDOW = 64  # source tokens
PAUSE = 1.0  # seconds


@dataclass(frozen=True)
class Segmentation:
    """The value of `--segment`: a mode, with a window in source tokens or a pause in seconds."""

    mode: str = "auto"
    window: int = WINDOW
    pause: float = PAUSE

    @classmethod
    def parse(cls, text: str) -> Segmentation:
        mode, colon, number = str(text).partition(":")
        if mode not in MODES:
            raise unknown("segment", mode, MODES)
        if not colon:
            return cls(mode)
        if mode == "pause" and (seconds := _number(number)) > 0:
            return cls(mode, pause=seconds)
        if mode in ("auto", "none") and (tokens := _number(number)) >= 8 and tokens % 1 == 0:
            return cls(mode, window=int(tokens))
        raise WaitinfoError(
            f"segment {text}: not understood; use a mode alone, pause:SECONDS (such as pause:0.7), "
            "or auto:TOKENS or none:TOKENS, a window of at least 8 source tokens"
        )

    @property
    def punctuated(self) -> bool:
        """Whether the text's own punctuation ends sentences."""
        return self.mode in ("auto", "punctuation")


def _number(text: str) -> float:
    """A finite number, or 0 for anything else."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


class Pauses:
    """Finds the pauses between the words of one stream."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last: float | None = None  # when the last word came, if no pause has followed yet

    def found(self, at: float, words: bool) -> bool:
        """Whether a pause ends now, or has lasted long enough; `words` if words come now."""
        ended = self._last is not None and at - self._last >= self.seconds
        if words:
            self._last = at
        elif ended:
            self._last = None
        return ended
