"""Conditions: the same test set as written, as recognisers give it, and as whole documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import TestSet
from waitinfo.text.files import normalise
from waitinfo.text.speech import Speaker, style_of

ALL = ("clean", "lower", "errors-5", "errors-10", "errors-15", "documents", "documents-lower")
NAME = re.compile(r"documents|(?:documents-)?(clean|lower|errors-(\d{1,2}))")


@dataclass(frozen=True)
class Condition:
    """How a test set is given to the model."""

    name: str
    documents: bool  # a whole document is one stream
    spoken: bool  # lower case without punctuation
    errors: float  # share of the words with a recognition error

    @classmethod
    def parse(cls, name: str) -> Condition:
        found = NAME.fullmatch(name)
        if not found:
            raise WaitinfoError(
                f"--condition {name}: use clean, lower (no capitals, no punctuation), errors-N "
                "(lower with N% word errors), documents, documents-lower, documents-errors-N or all"
            )
        spoken = found[1] not in (None, "clean")
        return cls(name, name.startswith("documents"), spoken, int(found[2] or 0) / 100)

    def apply(self, test: TestSet, language: str | None, seed: int = 1) -> TestSet:
        """The test set with its sources changed; documents are made when it is translated."""
        if not self.spoken:
            return test
        lines = [normalise(source) for source in test.sources]
        speaker = Speaker(language, style_of(self.errors, full=False), lines, seed)
        name = self.name.removeprefix("documents-")
        return replace(test, sources=[speaker.say(line) for line in lines], condition=name)


def parse_conditions(text: str) -> list[Condition]:
    """`lower,errors-5`, or `all`; each once."""
    names = [name for part in text.split(",") for name in (ALL if part == "all" else (part,))]
    return [Condition.parse(name) for name in dict.fromkeys(names)]
