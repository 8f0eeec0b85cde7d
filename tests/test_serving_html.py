"""HTML as passages: nothing lost, tags where their words are, work in proportion to the length."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lxml", reason="needs the extra serve")

from waitinfo.errors import WaitinfoError
from waitinfo.serving.html import DEPTH, PARTS, SLICE, TAGS, Document


def document(html: str) -> Document:
    found = Document()
    for _ in found.read(html):
        pass
    return found


def filled(html: str, *translations: str, anchors: Any = ()) -> str:
    found = document(html)
    given = translations or [passage.text for passage in found.passages]
    return "".join(found.fill((text, anchors) for text in given))


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        ("a <i>b</i> c", ["a b c"]), ("<code>x</code> y", ["y"]), ("a<br>b", ["a", "b"]),
        ('<p translate="no">a <b>b</b></p>c', ["c"]), ("a &amp; b", ["a & b"]),
        ("<p>a</p><p>b", ["a", "b"]), ("a < b", ["a < b"]), ("", []), (" ", []), ("<!-- a -->", []),
        ("<ul><li>a <b>b</b>\n c<li>d</ul>", ["a b c", "d"]), ("<style>a</style>b", ["b"]),
        ("<title>a</title><textarea>b</textarea>c", ["a", "c"]), ("<b><p>a</p>b</b>", ["a", "b"]),
    ],
)  # fmt: skip
def test_blocks_part_the_text_and_inline_elements_do_not(html: str, texts: list[str]) -> None:
    found = document(html)
    assert [passage.text for passage in found.passages] == texts
    again = document(filled(html))
    assert [passage.text for passage in again.passages] == texts


@pytest.mark.parametrize(
    ("html", "translation", "found"),
    [
        ("<p>Guten <b>Morgen</b>, Herr Müller!</p>", "Good morning, Mr Müller!",
         "<p>Good <b>morning</b>, Mr Müller!</p>"),
        ("Das ist <b>Anna</b> und <i>Peter</i>.", "This, by the way, is Anna and also Peter.",
         "This, by the way, is <b>Anna</b> and also <i>Peter</i>."),
        ("<a>Guten <b>Tag</b></a>", "Good day", "<a>Good <b>day</b></a>"),
        ("Eins <img src=a> zwei", "one two", 'one <img src="a"> two'),
        ("Eins<img src=a> zwei", "one two", 'one<img src="a"> two'),
        ("Eins <img src=a>", "one", 'one <img src="a">'), ("<img> Eins", "one", "<img> one"),
        ("(<i>Ja</i>)", "(yes)", "(<i>yes</i>)"), ("<b>Ja</b>", "a & b", "<b>a &amp; b</b>"),
        ("<b>a</b> <i>b</i>", "x", "<b>x</b><i></i>"), ("<b>a</b> b", "", "<b></b>"),
        ("<!DOCTYPE html><html lang=de><body>a", "b",
         '<!DOCTYPE html><html lang="de"><body>b</body></html>'),
        ("<input disabled value='a\"b'>a", "b", '<input disabled value="a&quot;b">b'),
        ("<script>a<b</script>a", "b", "<script>a<b</script>b"),
        ("我<b>喜欢</b>你", "I like you", "I <b>like</b> you"),
    ],
)  # fmt: skip
def test_elements_are_put_around_their_words(html: str, translation: str, found: str) -> None:
    assert filled(html, translation) == found


def test_sentences_do_not_move_each_others_tags() -> None:
    html = "a. <b>b</b> c d e f g h."
    assert filled(html, "s t u v w x. y z.") == "s <b>t</b> u v w x. y z."
    assert filled(html, "s t u v w x. y z.", anchors=[(1, 6), (8, 8)]) == (
        "s t u v w x. <b>y</b> z."
    )


class Told(HTMLParser):
    """What the standard library reads in a document."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


TEXT = st.lists(st.sampled_from(["ba", "be,", "Anna", "12", "&amp;", "&lt;", "漢字"]), min_size=1)
MARKUP = st.recursive(
    TEXT.map(" ".join),
    lambda inside: st.one_of(
        st.lists(inside, max_size=4).map(" ".join),
        st.tuples(st.sampled_from(["b", "i", "a", "span"]), inside).map(
            lambda found: f"<{found[0]}>{found[1]}</{found[0]}>"
        ),
        inside.map(lambda found: found + "<img>"),
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(MARKUP, max_size=4),
    st.lists(st.sampled_from(["one", "Anna", "12", "&", "<x>", "漢"])),
)
def test_no_tag_and_no_word_is_lost(parts: list[str], words: list[str]) -> None:
    html = "".join(f"<p>{part}</p>" for part in parts)
    translation = " ".join(words)
    count = len(document(html).passages)
    found = Told(filled(html, *[translation] * count) if count else filled(html))
    assert sorted(found.tags) == sorted(Told(html).tags)
    assert "".join(found.text.split()) == "".join(words) * count


@settings(max_examples=150, deadline=None)
@given(st.text("<>/!?-=\"' abpitle&;#x\0\ud800", max_size=60))
def test_whatever_comes_is_read_or_refused(html: str) -> None:
    try:
        filled(html)
    except WaitinfoError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "unit", ["<a ", "<p>", "<b></b>", "<!--", "<![CDATA[", "</x>", "<", "&#1", "<a b='", "<div>",
             "<div></p>", "<a></b>", "<svg>", "<table>", "<p x>y ", "<script>", "\0", "<?"]
)  # fmt: skip
def test_hostile_documents_take_small_steps(unit: str) -> None:
    """Each step reads a slice; the tags told in it are bounded by its letters, not by the text."""
    html = unit * (1_000_000 // len(unit))
    found, before, steps = Document(), 0, 0
    try:
        for _ in found.read(html):
            assert found._tags - before <= SLICE
            before, steps = found._tags, steps + 1
    except WaitinfoError:
        pass
    assert found._tags <= TAGS + 1 and steps <= len(html) / SLICE + 1


@pytest.mark.parametrize("attribute", [" a{}", "/a{}", " a{}=b", '{}a=""'])
def test_a_tag_is_read_at_once_and_so_has_a_bound(attribute: str) -> None:
    """However its attributes are parted; all other markup may be as long as a request."""
    tag = "<a " + "".join(attribute.format(n) for n in range(150_000)) + ">a</a>"
    with pytest.raises(WaitinfoError, match="may have 40,000 attributes"):
        document(tag)
    known = document("<a " + "".join(attribute.format(n) for n in range(PARTS // 4)) + ">a</a>")
    assert [passage.text for passage in known.passages] == ["a"]
    words = "a = b, " * 100_000
    for html in (f"<script>{words}</script>", f"<textarea>{words}</textarea>",
                 f'<img src="data:image/png;base64,{("a" * 63 + "/") * 15_000}">'):  # fmt: skip
        assert "".join(document(html).fill(())) == html


def test_bounds_are_told() -> None:
    with pytest.raises(WaitinfoError, match="nested 200 deep"):
        filled("<div>" * (DEPTH + 1))
    with pytest.raises(WaitinfoError, match="50,000 tags"):
        filled("<p>" * (TAGS + 1))
