"""The source and target language of a corpus or a model, if known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from waitinfo.errors import WaitinfoError, unknown

CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")

_PAIRS = """
    afr:af amh:am arb:ar asm:as azj:az bak:ba bel:be ben:bn bod:bo bos:bs bul:bg cat:ca ces:cs
    cym:cy dan:da deu:de ell:el eng:en epo:eo est:et eus:eu fao:fo fin:fi fra:fr gla:gd gle:ga
    glg:gl grn:gn guj:gu hat:ht hau:ha heb:he hin:hi hrv:hr hun:hu hye:hy ibo:ig ind:id isl:is
    ita:it jav:jv jpn:ja kan:kn kat:ka kaz:kk khk:mn khm:km kik:ki kin:rw kir:ky kor:ko lao:lo
    lin:ln lit:lt ltz:lb lug:lg lvs:lv mal:ml mar:mr mkd:mk mlt:mt mri:mi mya:my nld:nl nno:nn
    nob:nb npi:ne nya:ny oci:oc ory:or pan:pa pes:fa plt:mg pol:pl por:pt ron:ro run:rn rus:ru
    sag:sg san:sa sin:si slk:sk slv:sl smo:sm sna:sn snd:sd som:so sot:st spa:es als:sq srd:sc
    srp:sr ssw:ss sun:su swe:sv swh:sw tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tir:ti tsn:tn
    tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk urd:ur uzn:uz vie:vi wol:wo xho:xh ydd:yi yor:yo
    zho:zh zsm:ms zul:zu
"""
# Languages with a code of two letters; others keep those of three.
TWO_LETTERS = dict(re.findall(r"(\w+):(\w+)", _PAIRS))


@dataclass(frozen=True)
class Languages:
    """BCP 47 language codes, such as de, en, pt-BR, zh-Hant; None if unknown."""

    source: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        for side, code in asdict(self).items():
            if code is not None and not (isinstance(code, str) and CODE.fullmatch(code)):
                raise WaitinfoError(
                    f"{side} language '{code}': not a language code; use a code like de or pt-BR"
                )

    @classmethod
    def read(cls, record: dict[str, Any], path: Path) -> Languages:
        """Read the languages from the JSON of a model or corpus."""
        found = record.get("languages") or {}
        if not isinstance(found, dict):
            raise WaitinfoError(f"{path}: languages '{found}' must have a source and a target")
        try:
            return cls(found.get("source"), found.get("target"))
        except WaitinfoError as error:
            raise WaitinfoError(f"{path}: {error}") from None

    def entry(self) -> dict[str, dict[str, str]]:
        """The entry for the JSON of a model or corpus; empty if both are unknown."""
        known = {side: code for side, code in asdict(self).items() if code is not None}
        return {"languages": known} if known else {}


UNKNOWN = Languages()


class Opening(NamedTuple):
    """The tokens that both sides of every sentence begin with, in a model of many languages."""

    source: int
    target: int

    @property
    def path(self) -> list[tuple[int, int]]:
        """The target's, written as soon as the first real token of the source is read."""
        return [(self.target, 2)]


def short(code: str) -> str:
    """The code of two letters for one of three, if there is one: de for deu."""
    return TWO_LETTERS.get(code, code)


def fitting_codes(wanted: str, known: Iterable[str]) -> list[str]:
    """The codes of a model that a language stands for: itself, or those of all its scripts."""
    codes = list(known)
    language = wanted.partition("-")[0]
    return [wanted] if wanted in codes else [c for c in codes if c.partition("-")[0] == language]


def find_code(wanted: str, known: Iterable[str]) -> str:
    """The code of a model for a language; `zh` stands for `zh-Hans` if no other is `zh`."""
    found = fitting_codes(wanted, known)
    if len(found) == 1:
        return found[0]
    if found:
        raise WaitinfoError(f"language '{wanted}': give one of {', '.join(found)}")
    raise unknown("language", wanted, sorted(known))
