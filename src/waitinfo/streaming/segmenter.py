"""Sentence segmentation: each word is classified when it arrives, without the next word."""

from __future__ import annotations

import re

CLOSERS = "\"'’”“»«›‹)]}*_"
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
