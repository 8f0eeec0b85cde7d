"""Where a sentence ends, decided from each word as it arrives, without waiting for the next."""

from __future__ import annotations

import re

CLOSERS = "\"'’”“»«›‹)]}*_"
ENDS = "!?…。！？؟۔।॥"
# Words that keep their full stop inside a sentence, without it, in lower case.
GERMAN = """abb abs abt bd bsp bspw bzgl bzw ca d.h dgl dr etc evtl fr ggf hr hrsg inkl jh jhd
    kap mio mrd nr o.ä prof rd s.o s.u sog st str tel u.a u.u usw v.a vgl z.b z.t zzgl"""
ENGLISH = """a.m al approx assn ave capt cf cmdr co col corp dept dr e.g est fig gen gov hon i.e
    inc jr lt ltd maj messrs mr mrs ms mt p.m pp prof rep rev sen sgt sr st vol vs"""
OTHERS = "gs mlle mme pgs sra srta ths tp ts ud"  # titles in French, Spanish and Vietnamese
ABBREVIATIONS = frozenset(f"{GERMAN} {ENGLISH} {OTHERS}".split())
DOTTED = re.compile(r"(\w\.)+\w?")  # z.B, U.S, e.g: letters with stops between them
ORDINAL = re.compile(r"[\W_]*\d{1,2}")  # "am 3. Mai"; a year ends a sentence, a day does not


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
