"""Numbers as words: cardinals, ordinals, years and single digits in German and English."""

from __future__ import annotations

from typing import Protocol

LONGEST = 12  # digits; longer numbers are read digit by digit

GERMAN_SMALL = """null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn
    vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"""
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
GERMAN_ORDINALS = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}  # others add -te
ENGLISH_SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen
    fourteen fifteen sixteen seventeen eighteen nineteen"""
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
ENGLISH_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth",
                    "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}  # fmt: skip


class Numerals(Protocol):
    """The numbers of a language."""

    point: str  # between the whole part and the decimals
    minus: str

    def cardinal(self, number: int) -> str: ...

    def ordinal(self, number: int) -> str: ...

    def year(self, number: int) -> str: ...

    def digits(self, text: str) -> str:
        """Digits read one by one."""


class German:
    point, minus = "komma", "minus"
    SMALL, TENS = GERMAN_SMALL.split(), GERMAN_TENS.split()
    LARGE = ((10**9, "milliarde", "milliarden"), (10**6, "million", "millionen"))

    def cardinal(self, number: int) -> str:
        words = []
        for size, one, many in self.LARGE:
            count, number = divmod(number, size)
            if count:
                words.append(f"eine {one}" if count == 1 else f"{self._short(count)} {many}")
        if number or not words:
            words.append(self._short(number))
        return " ".join(words)

    def _short(self, number: int) -> str:
        """Below a million: one word."""
        thousands, rest = divmod(number, 1000)
        if thousands:
            head = self._before(thousands) + "tausend"
            return head + (self._hundreds(rest) if rest else "")
        return self._hundreds(number)

    def _hundreds(self, number: int) -> str:
        hundreds, rest = divmod(number, 100)
        if hundreds:
            return self._before(hundreds) + "hundert" + (self._tens(rest) if rest else "")
        return self._tens(rest)

    def _tens(self, number: int) -> str:
        if number < 20:
            return self.SMALL[number]
        tens, ones = divmod(number, 10)
        ten = self.TENS[tens - 2]
        return f"{self._before(ones)}und{ten}" if ones else ten

    def _before(self, number: int) -> str:
        """As the first part of a longer word: ein, not eins."""
        word = self._hundreds(number)
        return word[:-1] if word.endswith("eins") else word

    def ordinal(self, number: int) -> str:
        """As after an article: dritte, einundzwanzigste."""
        head, last = divmod(number, 100)
        if 0 < last < 20:
            ending = GERMAN_ORDINALS.get(last, self.SMALL[last] + "te")
            return (self.cardinal(100 * head) if head else "") + ending
        return self.cardinal(number) + "ste"

    def year(self, number: int) -> str:
        if 1100 <= number < 2000:
            century, rest = divmod(number, 100)
            return self._tens(century) + "hundert" + (self._tens(rest) if rest else "")
        return self.cardinal(number)

    def digits(self, text: str) -> str:
        return " ".join(self.SMALL[int(digit)] for digit in text)


class English:
    point, minus = "point", "minus"
    SMALL, TENS = ENGLISH_SMALL.split(), ENGLISH_TENS.split()
    LARGE = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"))

    def cardinal(self, number: int) -> str:
        words = []
        for size, name in self.LARGE:
            count, number = divmod(number, size)
            if count:
                words.append(f"{self._hundreds(count)} {name}")
        if number or not words:
            words.append(self._hundreds(number))
        return " ".join(words)

    def _hundreds(self, number: int) -> str:
        hundreds, rest = divmod(number, 100)
        if not hundreds:
            return self._tens(rest)
        head = f"{self.SMALL[hundreds]} hundred"
        return f"{head} and {self._tens(rest)}" if rest else head

    def _tens(self, number: int) -> str:
        if number < 20:
            return self.SMALL[number]
        tens, ones = divmod(number, 10)
        ten = self.TENS[tens - 2]
        return f"{ten} {self.SMALL[ones]}" if ones else ten

    def ordinal(self, number: int) -> str:
        *head, last = self.cardinal(number).split()
        if last in ENGLISH_ORDINALS:
            last = ENGLISH_ORDINALS[last]
        else:
            last = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
        return " ".join([*head, last])

    def year(self, number: int) -> str:
        century, rest = divmod(number, 100)
        if not 1100 <= number < 2100 or 2000 <= number < 2010:
            return self.cardinal(number)
        if not rest:
            return f"{self._tens(century)} hundred"
        return f"{self._tens(century)} {'oh ' if rest < 10 else ''}{self._tens(rest)}"

    def digits(self, text: str) -> str:
        return " ".join(self.SMALL[int(digit)] for digit in text)


NUMERALS: dict[str, Numerals] = {"de": German(), "en": English()}
