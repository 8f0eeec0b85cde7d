"""Files: one line for each line, whatever happens in between."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import HashStore

from tests.processes import Interrupt, die, in_a_process, leftovers
from tests.streams import lines_of_text, toy_model
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.translator import Translator
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation import file_translation
from waitinfo.translation.decoding import SentenceDecoder, TranslationOptions
from waitinfo.translation.file_translation import LineReader, survey, translate_file
from waitinfo.translation.sharing import FilePlan, Processes, UnfinishedFile


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_translation, "SMALLEST_BLOCK", 4)
    monkeypatch.setattr(file_translation, "LARGEST_BLOCK", 4)
    monkeypatch.setattr(file_translation, "POLL", 0.01)
    monkeypatch.setattr(file_translation, "fingerprint", lambda folder: "toy")


@pytest.fixture
def loaded() -> LoadedModel:
    return toy_model("full")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in lines_of_text()), "utf-8")
    return path


@pytest.fixture(scope="module")
def right() -> str:
    loaded = toy_model("full")
    return "".join(f"{text}\n" for text in Translator(loaded, 10).translate(lines_of_text()))


def test_a_file_becomes_what_streams_write(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    summary = translate_file(loaded, source, out, rows=3)
    assert out.read_text("utf-8") == right
    assert summary.translated == len(lines_of_text()) and not summary.invalid
    assert leftovers(tmp_path) == []


# Odd files

ODD: dict[str, tuple[bytes, list[str]]] = {
    "nothing": (b"", []),
    "one empty line": (b"\n", [""]),
    "no last line end": (b"ba\n\nbe", ["ba", "", "be"]),
    "other line ends": (b"ba\r\nbe\x0bbi\x85\xe2\x80\xa8bo\n", ["ba", "be\x0bbi\ufffd\u2028bo"]),
    "a byte order mark": (b"\xef\xbb\xbfba\n", ["ba"]),
    "not UTF-8": (b"ba\nb\xfce\nbi\n\xff\n", ["ba", "b\ufffde", "bi", "\ufffd"]),
    "NUL": (b"ba\0be\n\0\n", ["ba\0be", "\0"]),
    "a very long line": (b"ba be. " * 9 + b"\n" + b"ba" * 60, ["ba be. " * 9, "ba" * 60]),
}


@pytest.mark.parametrize("name", ODD)
def test_one_line_for_each_line(loaded: LoadedModel, name: str, tmp_path: Path) -> None:
    content, lines = ODD[name]
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_bytes(content)
    options = TranslationOptions(capacity=24)
    summary = translate_file(loaded, source, out, options)
    expected = Translator(loaded, 8, capacity=24).translate(lines)
    assert out.read_bytes().decode() == "".join(f"{text}\n" for text in expected)
    bad = [number for number, line in enumerate(content.split(b"\n"), 1) if not _valid(line)]
    assert sorted(summary.invalid) == bad


def _valid(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_compressed_files(
    loaded: LoadedModel, source: Path, right: str, suffix: str, tmp_path: Path
) -> None:
    if suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        pack, unpack = (
            zstandard.compress,
            lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(),
        )
    else:
        module = {".gz": gzip, ".xz": lzma}[suffix]
        pack, unpack = module.compress, module.decompress
    packed, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    packed.write_bytes(pack(source.read_bytes()))
    translate_file(loaded, packed, out)
    assert unpack(out.read_bytes()).decode() == right
    assert survey(packed) == survey(source)


def test_without_zstandard(
    loaded: LoadedModel, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(WaitinfoError, match="out.zst: writing .zst needs the package zstandard"):
        translate_file(loaded, source, tmp_path / "out.zst")


def test_several_translations_and_scores(loaded: LoadedModel, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text("ba be bi\n\ndu. ba\n", "utf-8")
    translate_file(loaded, source, out, TranslationOptions(beam=3, best=2, scores=True))
    rows = [line.split("\t") for line in out.read_text("utf-8").split("\n")[:-1]]
    assert [len(row) for row in rows] == [4, 4, 4] and rows[1] == ["0.0000", "", "0.0000", ""]
    assert all(float(score) < 0 for row in (rows[0], rows[2]) for score in row[::2])
    translate_file(loaded, source, out, TranslationOptions(beam=3), force=True)
    assert out.read_text("utf-8").split("\n")[:-1] == [row[1] for row in rows]


# Interruptions


@pytest.mark.parametrize("after", [2, 5])
def test_a_killed_translation_is_resumed(
    loaded: LoadedModel,
    source: Path,
    right: str,
    after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost, and nothing that was recorded is translated again."""
    out = tmp_path / "out.txt"
    status = in_a_process(
        lambda: translate_file(loaded, source, out, rows=1, progress=Interrupt(after, die))
    )
    assert os.WTERMSIG(status()) == signal.SIGKILL
    recorded = UnfinishedFile(out)
    recorded.join()
    done = recorded.recorded()
    recorded.close()
    assert 0 < done < len(lines_of_text()) and not out.exists()
    searched = []
    search = SentenceDecoder._search

    def watched(self, sentences, places):
        searched.extend(line for line, _ in places)
        return search(self, sentences, places)

    monkeypatch.setattr(SentenceDecoder, "_search", watched)
    summary = translate_file(loaded, source, out, rows=1, resume=True)
    assert summary.translated == len(lines_of_text()) - done
    assert len(set(searched)) <= summary.translated
    assert out.read_text("utf-8") == right
    assert leftovers(tmp_path) == []


def interrupted(loaded: LoadedModel, source: Path, out: Path, **given) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        translate_file(loaded, source, out, rows=1, progress=Interrupt(3, stop), **given)


def test_a_damaged_journal_counts_as_far_as_it_is_whole(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    interrupted(loaded, source, out)
    journal = next((tmp_path / ".out.txt.partial").glob("*.journal"))
    journal.write_bytes(journal.read_bytes() + b"x\tno number\n99\tnot its line\n3\tcut o")
    translate_file(loaded, source, out, resume=True)
    assert out.read_text("utf-8") == right


def test_what_is_added_does_not_join_a_record_that_was_cut_off(tmp_path: Path) -> None:
    """A process is killed while it writes, and so is the one that continues its block."""
    work = UnfinishedFile(tmp_path / "out.txt")
    work.begin(FilePlan(3, "", 3, {}), resume=False, force=False)
    for record in (b"0\tzero\n1\ton", b"2\ttwo\n"):
        block = work.claim(0)
        assert block is not None
        block._stream.write(record)
        block.close()
    block = work.claim(0)
    assert block is not None and block.found == {0: b"zero", 2: b"two"}
    block.add([(1, "one")])
    block.complete()
    assert work.merge()
    work.close()
    assert work.out.read_text() == "zero\none\ntwo\n"


def test_an_interrupted_merge_is_repeated(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.txt"

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full_disk)
    with pytest.raises(OSError, match="No space"):
        translate_file(loaded, source, out)
    assert not out.exists()
    monkeypatch.undo()
    monkeypatch.setattr(file_translation, "fingerprint", lambda folder: "toy")
    assert translate_file(loaded, source, out, resume=True).translated == 0
    assert out.read_text("utf-8") == right


def test_what_is_refused(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.txt"
    interrupted(loaded, source, out)
    kept = {path.name: path.read_bytes() for path in (tmp_path / ".out.txt.partial").iterdir()}

    def refused(message: str, chosen: LoadedModel = loaded, **given) -> None:
        with pytest.raises(WaitinfoError, match=message):
            translate_file(chosen, source, out, **given)
        folder = tmp_path / ".out.txt.partial"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept

    refused("an unfinished translation exists; continue it with resume")
    beam = TranslationOptions(beam=2, penalty=0.5)
    refused("begun with another beam and penalty", options=beam, resume=True)
    other = replace(loaded, model=toy_model("wait-k").model, system=toy_model("wait-k").system)
    refused("begun with another k and system", other, resume=True)
    with monkeypatch.context() as changed:
        changed.setattr(file_translation, "fingerprint", lambda folder: "another")
        refused("begun with another model", resume=True)
    refused("resume and force exclude each other", resume=True, force=True)
    content = source.read_bytes()
    source.write_bytes(content.replace(b"\n", b" du\n", 1))
    refused("begun with other input", resume=True)
    source.write_bytes(content)
    translate_file(loaded, source, out, resume=True)
    assert out.read_text("utf-8") == right


def test_an_existing_output(loaded: LoadedModel, source: Path, right: str, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    out.write_text("precious\n", "utf-8")
    with pytest.raises(WaitinfoError, match="out.txt: exists already; replace it with force"):
        translate_file(loaded, source, out)
    with pytest.raises(WaitinfoError, match="has 1 lines where .* nothing to resume"):
        translate_file(loaded, source, out, resume=True)
    interrupted(loaded, source, out, force=True)
    assert out.read_text("utf-8") == "precious\n", "it is replaced when the new one is complete"
    translate_file(loaded, source, out, resume=True)
    assert out.read_text("utf-8") == right
    assert translate_file(loaded, source, out, resume=True).translated == 0
    translate_file(loaded, source, out, TranslationOptions(beam=2), force=True)
    assert out.read_text("utf-8") != right


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("no", "out"), "no: no such file"),
        ((".", "out"), "is a folder, not a text file"),
        (("in.txt", "in.txt"), "is the input; write to another file"),
        (("in.txt", "no/out"), "no: no such folder"),
        (("in.txt", "."), "is a folder; give the name of a file"),
        (("in.txt", "out.zip"), "unknown suffix '.zip'; write plain text or"),
    ],
)
def test_paths_that_cannot_be(
    loaded: LoadedModel, source: Path, names: tuple[str, str], message: str
) -> None:
    given, out = (source.parent / name for name in names)
    with pytest.raises(WaitinfoError, match=message):
        translate_file(loaded, given, out)


# Several processes


def test_processes_share_the_work(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path
) -> None:
    """Each block is translated by one process; both wait for the whole."""
    out, counts = tmp_path / "out.txt", tmp_path / "counts"

    def join() -> None:
        summary = translate_file(loaded, source, out, rows=1, resume=True)
        with counts.open("a") as stream:
            stream.write(f"{summary.translated}\n")

    statuses = [in_a_process(join) for _ in range(3)]
    assert [status() for status in statuses] == [0, 0, 0]
    assert out.read_text("utf-8") == right
    assert sum(map(int, counts.read_text().split())) == len(lines_of_text())
    assert leftovers(tmp_path) == []


def test_blocks_of_a_dead_process_are_taken_over(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    dying = in_a_process(
        lambda: translate_file(loaded, source, out, rows=1, resume=True, progress=Interrupt(4, die))
    )
    staying = in_a_process(lambda: translate_file(loaded, source, out, rows=1, resume=True))
    assert dying() and not staying()
    assert out.read_text("utf-8") == right


def test_work_under_way_is_not_discarded(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    refusals = []

    def intrude() -> None:
        try:
            translate_file(loaded, source, out, force=True)
        except WaitinfoError as error:
            refusals.append(str(error))

    translate_file(loaded, source, out, rows=1, progress=Interrupt(3, intrude))
    assert refusals == [f"{out}: another process is translating to this file"]
    assert out.read_text("utf-8") == right


def test_ranks_begin_together(
    loaded: LoadedModel, source: Path, right: str, tmp_path: Path
) -> None:
    """The first process prepares; one that comes when all is done has nothing to do."""
    out, store = tmp_path / "out.txt", HashStore()
    first, second = (Processes(rank, 2, store=store) for rank in range(2))
    translate_file(loaded, source, out, processes=first)
    assert translate_file(loaded, source, out, processes=second).translated == 0
    assert out.read_text("utf-8") == right
    store = HashStore()
    for rank in range(2):
        with pytest.raises(WaitinfoError, match="exists already"):
            translate_file(loaded, source, out, processes=Processes(rank, 2, store=store))
    assert Processes(1, 2, 1).device("cuda") == "cuda:1"
    assert Processes(1, 2, 1).device("cpu") == "cpu" == Processes().device("cpu")
    assert Processes.join({}) == Processes()


def test_spans_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("".join(f"{n}\n" for n in range(10)), "utf-8")
    reader = LineReader(path)
    for span, known in (
        (range(2, 4), ()),
        (range(6, 9), {7}),
        (range(0, 3), ()),
        (range(8, 10), ()),
    ):
        right = [(n, str(n)) for n in span if n not in known]
        assert list(reader.read(span, known)) == right


def test_the_plan_is_readable(loaded: LoadedModel, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    interrupted(loaded, source, out)
    plan_path = tmp_path / ".out.txt.partial" / "plan.json"
    plan = json.loads(plan_path.read_text("utf-8"))
    assert plan["lines"] == len(lines_of_text()) and plan["settings"]["system"] == "full"
    plan_path.write_text("{", "utf-8")
    with pytest.raises(WaitinfoError, match="plan.json: cannot be read; start again with force"):
        translate_file(loaded, source, out, resume=True)
    translate_file(loaded, source, out, force=True)
