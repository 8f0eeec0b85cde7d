"""Text that is plainly in another language than the one expected.

Two kinds of evidence count: letters of another script, and frequent words of another language
(`WORDS`) that the expected language does not have. There must be enough of it, and hardly
any frequent words of the expected language. So short and mixed text, names and quotations pass:
silence is better than a false alarm. A language that is not known here is never complained about.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from functools import cache

from waitinfo.text.scripts import is_unspaced

# Frequent words: mostly articles, pronouns, prepositions, conjunctions and auxiliary verbs. Words
# of one letter are left out: they also are names of variables, units and list items.

NAMES = {
    "cs": "Czech", "da": "Danish", "de": "German", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "hu": "Hungarian", "id": "Indonesian", "it": "Italian",
    "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "sv": "Swedish", "tr": "Turkish", "vi": "Vietnamese", "ar": "Arabic", "bg": "Bulgarian",
    "el": "Greek", "fa": "Persian", "he": "Hebrew", "hi": "Hindi", "ja": "Japanese",
    "ko": "Korean", "ru": "Russian", "th": "Thai", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip

WORDS = {
    "cs": """ale ani ano asi až bez bude budou by byl byla bylo byly být co což další do ho i ja jak
        jako je jeho její jejich jen ještě již jsem jsme jsou jste kde kdy když která které který
        má mají mě mi mezi mohou může musí na nad nám nebo není než nic od pak pod podle pokud
        protože proto před při pro roku se si své tak také tam tedy ten této to toho tom tento už
        ve více však vše vám za ze že""",
    "da": """af aldrig alle alt at blev blive bliver da de deg dem den denne der deres det dette dig
        din du efter eller en end er et for fordi fra før godt ham han hans har havde hende her hos
        hun hvad hvem hver hvis hvor hvordan hvorfor ikke ind jeg kan kun kunne lige man mange med
        meget mellem men mig min mod må ned nogen noget nok nu når og også om op os over på selv
        sig sin skal skulle som så til ud uden under ved var vi vil ville vores være været""",
    "de": """aber alle allem allen aller alles als also am an andere anderen auch auf aus bei beim
        bereits bin bis bist bitte da dabei daher damit dann darauf darf daran darüber das dass daß
        davon dazu dein deine dem den denen denn der deren des deshalb dessen dich die dies diese
        diesem diesen dieser dieses dir doch dort du durch dürfen eben ein eine einem einen einer
        eines einige er erst es etwas euch euer für ganz gar gegen geht gerade gibt gut hab habe
        haben habt hast hat hatte hatten hätte hätten heute hier hinter ich ihm ihn ihnen ihr ihre
        ihrem ihren ihrer im immer in ins ist ja jede jeder jedoch jetzt kann kannst kein keine
        keinen können könnte machen macht man mehr mein meine meinem meinen meiner mich mir mit
        muss müssen musste nach nein nicht nichts noch nun nur ob oder ohne schon sehr sein seine
        seinem seinen seiner seit sich sie sind so soll sollte sollten sondern sowie über uhr um und
        uns unser unsere unter viel viele vom von vor wann war waren warum was weil wenn wer werden
        wie wieder will wir wird wo wurde wurden würde würden zu zum zur zwischen""",
    "en": """about after again all also am an and another any are as at back be because been before
        being between both but by can come could day did do does doing don't down each even every
        few first for from get go going good had has have having he her here him his how i'm i'll
        i've if in into is isn't it it's its just know like made make many me more most much must my
        never new no not now of off on once one only or other our out over own please really said
        same say see she should so some still such take than thank that that's the their them then
        there there's these they think this those through time to too two under until up us very
        want was way we we're well were what when where which while who why will with without would
        yes yet you you're your""",
    "es": """al algo algún alguna algunos ante antes aquí así aunque bien cada como cómo con contra
        cual cuál cuando cuándo cuanto cuánto de del desde donde dónde dos durante el él ella ellas
        ellos en entre era eran eres es esa ese eso esos esta está están estamos estar estas este
        esto estos estoy fue fueron gracias ha había hace hacer hacia han hasta hay la las le les lo
        los luego más me mejor menos mi mientras mis mucho muy nada ni no nos nosotros nuestra
        nuestro nunca os otra otro otros para pero poco podemos por porque pues puede pueden puedo
        que qué quien quién quiero se sea ser si sí sido siempre sin sobre son soy su sus también
        tan tanto tiene tienen todo todos tu tú un una uno unos usted ustedes vamos ya yo""",
    "fi": """aina aivan ei eikä emme en että ettei hän häntä he heidän hyvin ihan ilman itse ja jo
        joka jonka jossa jota jotka joten jos kaikki kanssa koska kuin kuinka kun kuten me mikä
        miksi mikään missä mitä mutta myös ne niin niitä noin nyt ole oli olen olet olivat olla
        olemme on ovat pitää se sekä sen siellä siihen siinä sitä sitten tai tämä tämän tässä tätä
        te tuo vain vai vaan vielä voi voisi voit""",
    "fr": """afin ai ainsi alors après as au aucun aujourd'hui aussi autre autres aux avait avant
        avec avez avoir avons beaucoup bien car ce cela celle celui ces cet cette ceux chaque chez
        comme comment contre dans de depuis des deux doit donc du elle elles en encore entre est et
        étaient était été être eu eux faire fait faut il ils je jusqu'à la le les leur leurs lui
        mais même mes moi moins mon ne ni non nos notre nous on ont ou où par parce pas pendant peu
        peut plus pour pourquoi pouvez puis qu'il qu'elle quand que quel quelle quelques qui quoi
        sa sans se sera ses si soit son sommes sont sous sur suis sujet ta te tes toi ton tous tout
        toute toutes très tu un une vers veux voici voilà vos votre vous y'a c'est j'ai d'un d'une
        l'on n'est s'il qu'on""",
    "hu": """akkor alatt amely amelyek amikor amit arra át azért azok azonban azt azzal be belül
        csak de ebben egy egyik ehhez el ellen előtt és ez ezek ezért ezt fel hanem hogy hogyan ha
        igen is itt jól kell ki kívül le legyen lehet lesz lett maga már más meg még mert mi miatt
        mindig mint mit most nagyon neki nélkül nem nincs olyan ott ő össze pedig sem semmi számára
        szerint től vagy vagyok valami van vannak vele volt voltak""",
    "id": """ada adalah agar akan aku anda apa apakah atas atau bagaimana bagi bahwa banyak baru
        belum bisa boleh bukan dalam dan dapat dari daripada dengan di dia hanya harus hari ini itu
        jadi jangan jika juga kalau kami kamu karena kata ke kepada kita lagi lebih masih mengapa
        mereka namun oleh pada para pernah saat sangat satu saya sebagai sebuah sedang sekarang
        semua seperti serta siapa sudah tahun telah terima tetapi tidak untuk yang""",
    "it": """ad ai al alla alle allo anche ancora avere aveva avete abbiamo bene che chi ci come con
        contro cosa così cui da dal dalla dalle degli dei del della delle dello di dopo dove due e'
        ed era erano essere fa fare fra già gli ha hai hanno ho il in io la le lei li lo loro lui
        ma me mi mia mio molto ne nei nel nella nelle nessuno niente noi non nostra nostro o ogni
        ora per perché più poco poi può prima puoi qua quale quando quanto quella quelle quelli
        quello questa queste questi questo qui se sei sempre senza si sia siamo sono sotto sta stata
        stato stesso su sua sue sugli sui sul sulla suo suoi ti tra tua tuo tutti tutto un una uno
        vi voi vorrei è c'è dell'""",
    "nl": """aan al alle alleen als altijd ben bent bij daar dan dat de deze die dit door dus echt
        een eens en er gaan gaat geen goed haar had hebben hebt heb heeft heel hem hen het hier hij
        hoe hun iets ik in is ja je jij jouw jullie kan kunnen kunt maar mag me meer met mij mijn
        moet moeten na naar niet niets nog nooit nu of om omdat onder ons onze ook op over te tegen
        toch toen tot tussen uit van veel vind voor waar waarom want waren was wat we weer wel werd
        wie wij wil worden wordt zal ze zeer zei zelf zich zij zijn zo zonder zou""",
    "no": """alle alt at av bare ble bli blir da de deg dem den denne der deres det dette din du
        eller en er et etter for fordi fra før få gå ha hadde han hans har henne her hun hva hvem
        hver hvis hvor hvordan hvorfor ikke inn jeg kan kunne litt man mange med meg mellom men mer
        mot mye må ned nei noe noen nok nå når og også om opp oss over på seg selv sin skal skulle
        som så til under ut uten var ved vi vil ville vår være vært""",
    "pl": """albo ale ani bardzo bez był była było były być by chce ci ciebie co coś czy czego czyli
        dla do dlaczego gdy gdzie go ich ile im inne jak jako je jego jej jednak jest jestem jesteś
        jeszcze jeśli już kiedy kto która które którego których który którzy lub ma mają mam mi mnie
        może można mu musi my na nad nam nas nawet nie nic nich nim niż od on ona oni oraz po pod
        ponieważ przed przez przy są się sobie swoje ta tak takie także tam te tego tej ten też to
        tu tych tylko tym we więc wszystko za ze że żeby""",
    "pt": """agora ainda algo alguns alguém além antes ao aos apenas aqui as assim até bem cada com
        como contra da das de dela dele deles depois desde deve do dois dos duas durante ela elas
        ele eles em então entre era essa esse está estamos estão estar estas este estes estou eu
        fazer foi foram há isso isto já lá lhe mais mas me mesmo meu minha muito muitos na nada não
        nas nem no nos nós nossa nosso num numa nunca obrigado onde os ou outra outro para pela
        pelas pelo pelos pode podemos por porque pouco quais qual quando que quem quero são se sem
        sempre ser seu seus só sobre sua suas também tão tem têm temos tenho ter teu tinha toda
        todas todo todos tu tudo um uma vai vamos você vocês""",
    "ro": """aceasta această aceste acest acesta acestui acum ai al ale am apoi are asta astfel
        atunci au avea avem aveți bine când care ce cea cel cele cei cine cu cum cât că da dacă dar
        decât deja după din doar două ea ei el ele era eram este eu eșt fi fie foarte fost fără
        fără iar în încă între îi îl îmi își îți la le lor lui mai mult mulți ne nici nimic noi
        nostru nu numai o'r ori pe pentru peste poate prea prin până sale sau se sunt sunteți și te
        toate toți trebuie tu un una unde unei unor unui va vor vreau vă""",
    "sv": """alla allt att av bara bland blev bli blir bra dag de deg dem den denna deras det detta
        dig din dina dit du där då efter eller en er ett från för före ha hade han hans har hennes
        henne hon hos hur här honom i'm icke in ingen inget inte jag kan kanske kom kommer kunde man
        med mellan men mer mig min mina mitt mot mycket måste ni nu när något någon några och också
        om oss på sedan sig sin sina ska skall skulle som så till under upp ut utan var varför vad
        vara varit vem vi vid vilken vill är än även över""",
    "tr": """acaba ama ancak artık aslında bana bazı belki ben beni benim bile bir biri biz bizim
        bu buna bunu bunun burada çok çünkü da daha de değil defa diye dolayı en fakat gibi göre
        hangi hatta hem henüz hep hepsi her hiç için ile ilgili ise kadar karşı kendi ki kim kimse
        mi mu mı mü nasıl neden nerede neye niçin niye o'nun olan olarak oldu olduğu olduğunu olsun
        olur ona onlar onu onun orada oysa önce pek rağmen sadece sana sen seni senin siz sizin
        sonra şey şimdi şu tüm var veya ve ya yani yok zaten""",
    "vi": """ai anh bạn bị bởi cả các cái cách cần chỉ cho chúng chưa có con cô cùng của cũng đã
        đang đây đến đều để đi điều đó được gì hai hãy hay hơn khi không là làm lại lên mà mình một
        mỗi này năm nên nếu ngày người như nhưng những nhiều nói ở phải qua ra rất rằng rồi sau sẽ
        sự ta tại theo thế thể thì tôi trên trong trước từ và vẫn vào về vì việc với xin""",
}  # fmt: skip


# Not the parts of addresses and code.
WORD = re.compile(r"(?<![\w/=&?@.#\\])[^\W\d_]+(?:['’][^\W\d_]+)?(?![\w/=&@(])")
LEAST_HITS = 4  # frequent words of the other language
LEAST_DISTINCT = 3  # different ones
LEAST_SHARE = 0.2  # of all words
OWN_SHARE = 0.2  # of the expected language, at most, for each word of the other
LEAST_LETTERS = 12  # of another script; a Chinese or Japanese one counts as three
SCRIPT_SHARE = 0.75  # of all letters
ENOUGH = 200  # words after which a watch is over
LONGEST = 64  # letters of a word

# Scripts as Unicode names begin with them. Languages that are not listed use Latin letters.
SCRIPTS = {
    "ar": "ARABIC", "fa": "ARABIC", "bg": "CYRILLIC", "ru": "CYRILLIC", "uk": "CYRILLIC",
    "el": "GREEK", "he": "HEBREW", "hi": "DEVANAGARI", "th": "THAI", "ko": "HANGUL CJK",
    "ja": "HIRAGANA KATAKANA CJK", "zh": "CJK",
}  # fmt: skip

DENSE = frozenset(SCRIPTS["ja"].split())  # a letter says about as much as a syllable


@cache
def word_languages() -> dict[str, frozenset[str]]:
    """The languages of every frequent word."""
    found: dict[str, set[str]] = {}
    for language, words in WORDS.items():
        for word in words.split():
            found.setdefault(word, set()).add(language)
    return {word: frozenset(languages) for word, languages in found.items()}


@cache
def script(letter: str) -> str:
    """LATIN, CYRILLIC, CJK, …"""
    name = unicodedata.name(letter, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    return re.split(r"[ -]", name, maxsplit=1)[0]


def language_name(code: str) -> str:
    return NAMES.get(code, code)


def base_code(code: str | None) -> str | None:
    """The language of a code that is known here: pt for pt-BR; None for any other."""
    if code is None:
        return None
    base = code.split("-")[0].lower()
    base = {"nb": "no", "nn": "no"}.get(base, base)
    return base if base in NAMES else None


class Evidence:
    """What some text says about its language, given the language that is expected."""

    def __init__(self, language: str | None) -> None:
        self.language = base_code(language)
        self.words = self.letters = self.foreign = 0
        self.hits: Counter[frozenset[str]] = Counter()  # frequent words, by their languages
        self._distinct: dict[str, set[str]] = {}  # different words of other languages
        self.scripts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Count the words and letters of a text."""
        known = word_languages()
        for word in WORD.findall(text.lower()):
            self.words += 1
            self.letters += len(word)
            languages = known.get(word.replace("’", "'"))
            if languages is not None:
                self.hits[languages] += 1
                if self.language not in languages:
                    self.foreign += 1
                    for language in languages:
                        self._distinct.setdefault(language, set()).add(word)
            elif not word.isascii():
                self.scripts.update(map(script, filter(str.isalpha, word)))

    def other_language(self) -> str | None:
        """The name of the other language or script that the text is plainly in; None if none."""
        if self.language is None:
            return None
        return self._other_script() or self._other_words()

    def _other_script(self) -> str | None:
        own = SCRIPTS.get(self.language or "", "LATIN").split()
        others = {name: count for name, count in self.scripts.items() if name not in own and name}
        letters = sum(others.values())
        dense = sum(count for name, count in others.items() if name in DENSE)
        if letters + 2 * dense < LEAST_LETTERS or letters < SCRIPT_SHARE * self.letters:
            return None
        name = max(others, key=lambda name: others[name])
        return f"{name.title() if name != 'CJK' else name} script"

    def _other_words(self) -> str | None:
        needed = max(LEAST_HITS, LEAST_SHARE * self.words)
        if self.foreign < needed:
            return None
        best, most = None, 0
        for language, distinct in self._distinct.items():
            hits = own = 0
            for languages, count in self.hits.items():
                if self.language not in languages:
                    hits += count if language in languages else 0
                elif language not in languages:
                    own += count
            plain = len(distinct) >= LEAST_DISTINCT and own <= OWN_SHARE * hits
            if hits >= needed and plain and hits > most:
                best, most = language, hits
        return None if best is None else language_name(best)


def other_language(text: str, language: str | None) -> str | None:
    """The language or script that a text is plainly in, if it is not the expected one; else None.

    >>> other_language("Je ne sais pas où est la gare, mais je peux vous aider.", "de")
    'French'
    >>> other_language("Das Restaurant heißt „Chez nous“, nicht wahr?", "de")
    """
    evidence = Evidence(language)
    evidence.add(text)
    return evidence.other_language()


def likely_languages(text: str) -> dict[str, float]:
    """The languages that a text may be in, the likeliest first; each with its share of the signs.

    >>> next(iter(likely_languages("Ich habe das nicht gewusst, aber es ist so.")))
    'de'
    """
    points: dict[str, float] = {}
    evidence = Evidence(None)
    evidence.add(text)
    for languages, count in evidence.hits.items():
        for language in languages:
            points[language] = points.get(language, 0.0) + count / len(languages)
    for name, count in evidence.scripts.items():
        for language in (code for code, own in SCRIPTS.items() if name in own.split()):
            share = count / len(SCRIPTS[language].split())
            points[language] = points.get(language, 0.0) + share
    whole = sum(points.values())
    ordered = sorted(points, key=lambda language: -points[language])
    return {language: points[language] / whole for language in ordered}


class LanguageWarning(UserWarning):
    """The text of a stream is plainly in another language than the model's source language."""


class LanguageWatch:
    """Watches text that arrives in pieces, and reports once if it is in another language."""

    def __init__(self, language: str | None, raw: bool = False) -> None:
        self.other: str | None = None  # the language that was found
        self._evidence = Evidence(language)
        self._raw, self._rest = raw, ""  # `raw` pieces may end within a word
        self._over = self._evidence.language is None

    def add(self, text: str) -> str | None:
        """The message for the user, if this piece has decided it; else None."""
        if self._over:
            return None
        if self._raw:
            text, self._rest = _whole_words(self._rest + text)
        self._evidence.add(text)
        self.other = self._evidence.other_language()
        self._over = self.other is not None or self._evidence.words >= ENOUGH
        return None if self.other is None else self.message

    def warn(self, text: str) -> None:
        """The same, as a `LanguageWarning`: one for every watch, whatever others have warned of."""
        if message := self.add(text):
            warnings.warn_explicit(message, LanguageWarning, "waitinfo", 1, registry={})

    @property
    def message(self) -> str:
        expected = language_name(self._evidence.language or "")
        return f"the text looks like {self.other}, but the model translates from {expected}"


def _whole_words(text: str) -> tuple[str, str]:
    """Cut a text after its last complete word; a long text without an end is taken as it is."""
    for place in range(len(text), 0, -1):
        if text[place - 1].isspace() or is_unspaced(text[place - 1]):
            return text[:place], text[place:]
    return (text, "") if len(text) > LONGEST else ("", text)
