"""Reading numbers, dates, times, units and abbreviations aloud, in German and English.

A recogniser without number formatting writes what it hears: "2015" is "zweitausendfünfzehn",
"3,5 %" is "drei komma fünf prozent". Codes, such as A380 or H5N1, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

# Numerals

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


# Numbers in text

# Abbreviations as they are read. Longer ones come first, so that "d. h." is not taken for "h.".
ABBREVIATIONS = {
    "de": {
        "i. d. R.": "in der Regel", "z. B.": "zum Beispiel", "z. T.": "zum Teil",
        "d. h.": "das heißt", "u. a.": "unter anderem", "u. U.": "unter Umständen",
        "o. ä.": "oder ähnliches", "v. a.": "vor allem", "s. o.": "siehe oben",
        "s. u.": "siehe unten", "bzgl.": "bezüglich", "bspw.": "beispielsweise",
        "bzw.": "beziehungsweise", "usw.": "und so weiter", "etc.": "et cetera", "ca.": "circa",
        "vgl.": "vergleiche", "evtl.": "eventuell", "ggf.": "gegebenenfalls", "inkl.": "inklusive",
        "sog.": "sogenannte", "Mio.": "Millionen", "Mrd.": "Milliarden", "Prof.": "Professor",
        "Dr.": "Doktor", "Nr.": "Nummer", "Abs.": "Absatz", "Art.": "Artikel", "Str.": "Straße",
        "St.": "Sankt", "Hr.": "Herr", "Tel.": "Telefon",
    },
    "en": {
        "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "vs.": "versus",
        "approx.": "approximately", "Mr.": "mister", "Mrs.": "misses", "Ms.": "miss",
        "Dr.": "doctor", "Prof.": "professor", "St.": "saint", "Jr.": "junior", "Sr.": "senior",
        "Inc.": "incorporated", "Ltd.": "limited", "Corp.": "corporation", "dept.": "department",
    },
}  # fmt: skip
SYMBOLS = {
    "de": {"%": "Prozent", "‰": "Promille", "€": "Euro", "$": "Dollar", "£": "Pfund", "¥": "Yen",
           "&": "und", "§": "Paragraf", "°": "Grad", "²": "Quadrat", "³": "hoch drei",
           "+": "plus", "=": "gleich", "@": "at", "½": "einhalb", "¼": "ein Viertel",
           "¾": "drei Viertel", "×": "mal"},
    "en": {"%": "percent", "‰": "per mille", "€": "euros", "$": "dollars", "£": "pounds",
           "¥": "yen", "&": "and", "§": "section", "°": "degrees", "²": "squared", "³": "cubed",
           "+": "plus", "=": "equals", "@": "at", "½": "a half", "¼": "a quarter",
           "¾": "three quarters", "×": "times"},
}  # fmt: skip
UNITS = {
    "de": {"km/h": "Kilometer pro Stunde", "km": "Kilometer", "cm": "Zentimeter",
           "mm": "Millimeter", "kg": "Kilogramm", "m": "Meter", "g": "Gramm", "ha": "Hektar",
           "t": "Tonnen", "GB": "Gigabyte", "MB": "Megabyte", "kW": "Kilowatt", "MW": "Megawatt",
           "°C": "Grad Celsius", "°F": "Grad Fahrenheit"},
    "en": {"km/h": "kilometres per hour", "mph": "miles per hour", "km": "kilometres",
           "cm": "centimetres", "mm": "millimetres", "kg": "kilograms", "ft": "feet",
           "lb": "pounds", "lbs": "pounds", "m": "metres", "GB": "gigabytes", "MB": "megabytes",
           "kW": "kilowatts", "MW": "megawatts", "°C": "degrees Celsius",
           "°F": "degrees Fahrenheit"},
}  # fmt: skip
FRACTIONS = {
    "de": {"2": ("ein halb", "halbe"), "3": ("ein Drittel", "Drittel"),
           "4": ("ein Viertel", "Viertel"), "5": ("ein Fünftel", "Fünftel")},
    "en": {"2": ("one half", "halves"), "3": ("one third", "thirds"),
           "4": ("one quarter", "quarters"), "5": ("one fifth", "fifths")},
}  # fmt: skip
ARTICLES = {"der", "die", "das", "jeder", "jede", "jedes"}  # der dritte, but am dritten
CURRENCIES = "€$£¥"

DIGIT = re.compile(r"\d")
STARTS = "Das|Der|Die|Ein|Eine|Er|Es|Ich|Sie|Wir|Und|Aber|Dies|Diese"  # of a new sentence
BEFORE = r"(\b\w+\s+)?"
FREE = r"(?<![\w.,:/])"  # nothing that belongs to the number stands before it
ENDS = r"(?!\w)(?!['’]\w)(?![.,:/]\d)"


class NumberReader:
    """Writes the numbers of a language in words. `READERS` has one for each known language."""

    def __init__(self, language: str) -> None:
        self.language, self.numerals = language, NUMERALS[language]
        self.german = language == "de"
        group, point = (r"[. \u00a0\u202f]", ",") if self.german else (",", r"\.")
        self._group = re.compile(group)
        self._plain = rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+"
        self._point = point.removeprefix("\\")
        number = rf"(?:{self._plain})(?:{point}\d+)?"
        self._rules: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = [
            (
                re.compile(rf"{BEFORE}{FREE}(\d{{1,2}})\.(\d{{1,2}})\.(\d{{4}}|\d\d)?{ENDS}"),
                self._date,
            ),
            (re.compile(rf"{FREE}(\d{{1,2}})[:.]([0-5]\d)\s+Uhr\b"), self._clock),
            (re.compile(rf"{FREE}([01]?\d|2[0-4]):([0-5]\d){ENDS}"), self._clock),
            (re.compile(rf"{FREE}(\d{{1,3}}):(\d{{1,3}}){ENDS}"), self._score),
            (re.compile(rf"{FREE}(\d{{4}})/(\d{{2}}|\d{{4}}){ENDS}"), self._season),
            (re.compile(rf"{FREE}(\d{{1,2}})/([2-5]){ENDS}"), self._fraction),
            (re.compile(rf"{FREE}({number})\s?[-–]\s?({number}){ENDS}"), self._range),
            (re.compile(rf"([{CURRENCIES}])\s?({number})((?:\s[mb]illion)?){ENDS}"), self._money),
            (self._ordinal_pattern(), self._ordinal),
            (re.compile(rf"(?<![\w.,])[-−](?={number}{ENDS})"), self._minus),
            (re.compile(rf"{FREE}({number}){ENDS}"), self._number),
        ]
        units = sorted(UNITS[language], key=len, reverse=True)
        self._unit = re.compile(rf"(?<=\d)\s?({'|'.join(map(re.escape, units))}){ENDS}")
        # In upper and lower case, with and without spaces inside.
        known = {name.replace(" ", ""): words for name, words in ABBREVIATIONS[language].items()}
        self._known = {name.lower(): words for name, words in known.items()}
        spellings = "|".join(r"\s?".join(map(re.escape, self._parts(name))) for name in known)
        self._abbreviation = re.compile(rf"(?<![\w.])(?:{spellings})(?!\w)", re.IGNORECASE)
        self._endings = tuple(ABBREVIATIONS[language])  # of a text, where a full stop ends it, too
        self._symbols = str.maketrans({s: f" {word} " for s, word in SYMBOLS[language].items()})
        self._any_symbol = re.compile(f"[{re.escape(''.join(SYMBOLS[language]))}]")

    @staticmethod
    def _parts(name: str) -> list[str]:
        """The letters of z.B., each with its full stop; other names in one piece."""
        letters = re.findall(r"\w\.", name)
        return letters if "".join(letters) == name else [name]

    def _ordinal_pattern(self) -> re.Pattern[str]:
        if not self.german:
            return re.compile(rf"{FREE}(\d{{1,{LONGEST}}})(?:st|nd|rd|th){ENDS}")
        # "am 3. Mai": a day or a rank; at the end of a sentence it is a number.
        return re.compile(rf"{BEFORE}{FREE}(\d{{1,2}})\.(?=\s+\w)(?!\s+(?:{STARTS})\b)")

    def words(self, text: str) -> str:
        """Abbreviations and symbols in words; numbers stay digits."""
        if 0 <= text.find(".") < len(text) - 1 or text.endswith(self._endings):
            text = self._abbreviation.sub(self._expand, text)
        if self._any_symbol.search(text):
            text = text.translate(self._symbols)
        return text

    def read(self, text: str) -> str:
        """Numbers, too."""
        if DIGIT.search(text):
            text = self._unit.sub(lambda found: f" {UNITS[self.language][found[1]]}", text)
            for pattern, say in self._rules:
                text = pattern.sub(say, text)
        return self.words(text)

    def _expand(self, found: re.Match[str]) -> str:
        return self._known["".join(found[0].split()).lower()]

    # Rules

    def _say(self, digits: str) -> str:
        """A number as written, with its separators."""
        whole, point, decimals = digits.partition(self._point)
        whole = self._group.sub("", whole)
        if len(whole) > LONGEST or (len(whole) > 1 and whole[0] == "0"):
            said = self.numerals.digits(whole)
        elif len(whole) == 4 and whole == digits:
            said = self.numerals.year(int(whole))
        else:
            said = self.numerals.cardinal(int(whole))
        if point:
            said = f"{said} {self.numerals.point} {self.numerals.digits(decimals)}"
        return said

    def _number(self, found: re.Match[str]) -> str:
        return self._say(found[1])

    def _minus(self, found: re.Match[str]) -> str:
        return f"{self.numerals.minus} "

    def _range(self, found: re.Match[str]) -> str:
        middle = "bis" if self.german else "to"
        return f"{self._say(found[1])} {middle} {self._say(found[2])}"

    def _score(self, found: re.Match[str]) -> str:
        middle = "zu" if self.german else "to"
        return f"{self._say(found[1])} {middle} {self._say(found[2])}"

    def _season(self, found: re.Match[str]) -> str:
        return f"{self._say(found[1])} {self._say(found[2])}"

    def _fraction(self, found: re.Match[str]) -> str:
        one, many = FRACTIONS[self.language][found[2]]
        return one if found[1] == "1" else f"{self._say(found[1])} {many}"

    def _money(self, found: re.Match[str]) -> str:
        unit = SYMBOLS[self.language][found[1]]
        return f"{self._say(found[2])}{found[3]} {unit}"

    def _ordinal(self, found: re.Match[str]) -> str:
        if not self.german:
            return self.numerals.ordinal(int(found[1]))
        before, number = found[1] or "", int(found[2])
        return before + self._inflected(before, number) if number else found[0]

    def _inflected(self, before: str, number: int) -> str:
        """A German ordinal after a word: der dritte, am dritten; alone: dritter."""
        ending = "n" if before else "r"
        if before.strip().lower() in ARTICLES:
            ending = ""
        return self.numerals.ordinal(number) + ending

    def _date(self, found: re.Match[str]) -> str:
        """am 12.5.2004: am zwölften fünften zweitausendvier."""
        before, day, month, year = found[1] or "", int(found[2]), int(found[3]), found[4]
        if not (self.german and 1 <= day <= 31 and 1 <= month <= 12):
            return found[0]
        said = [self._inflected(before, day), self._inflected(before, month)]
        if year:
            said.append(self._say(year) if len(year) == 4 else self.numerals.digits(year))
        return before + " ".join(said)

    def _clock(self, found: re.Match[str]) -> str:
        hour, minute = int(found[1]), int(found[2])
        minutes = f" {self.numerals.cardinal(minute)}" if minute else ""
        if self.german:
            return f"{'ein' if hour == 1 else self.numerals.cardinal(hour)} Uhr{minutes}"
        return self.numerals.cardinal(hour) + (" oh" if 0 < minute < 10 else "") + minutes


READERS = {language: NumberReader(language) for language in NUMERALS}
