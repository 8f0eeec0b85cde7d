"""`waitinfo analyse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table as RichTable

from waitinfo.analysis.run import ANALYSES, analyse, choose
from waitinfo.analysis.study import Study, Subject, check_comparable
from waitinfo.analysis.summaries import Numbers, Table
from waitinfo.analysis.tagger import Tagger, make_tagger
from waitinfo.cli.display import note, print_table, progress_bar
from waitinfo.cli.loading import load, use_threads
from waitinfo.cli.options import numbers
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.evaluation.curves import check_axis
from waitinfo.evaluation.evaluate import Evaluation, TestSet
from waitinfo.evaluation.latency import METRICS, PROFILES
from waitinfo.evaluation.plot import pyplot
from waitinfo.evaluation.quality import check_installed
from waitinfo.progress import Progress
from waitinfo.systems import System, check_dial
from waitinfo.trained.saving import LoadedModel

STORE = "translations"
DIALS = (1.0, 3.0, 5.0, 7.0, 9.0)
BY_TOKENS = ("wait-info", "wait-k", "multipath", "moe-wait-k")  # systems with such dials


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    model: Path | None
    source: Path
    reference: Path
    out: Path
    what: str | None
    k: str | None
    system: str | None
    settings: list[str]
    against: Path | None
    against_system: str | None
    against_settings: list[str]
    against_k: str | None
    source_tags: list[str]
    target_tags: list[str]
    case: int | None
    sentences: int
    x: str
    device: str
    dtype: str
    threads: int


def run(request: Request) -> None:
    wanted = _wanted(request.what)
    x = check_axis("--x", request.x)
    if x not in {f"{profile}.{metric}" for profile in PROFILES for metric in METRICS}:
        raise WaitinfoError(f"--x {request.x}: must be a latency, as paper.AL or word.LAAL")
    test, lines = _test_set(request)
    check_installed()
    pyplot()
    use_threads(request.threads)
    if request.out.exists() and not request.out.is_dir():
        raise WaitinfoError(f"--out {request.out}: is a file; give a folder")
    main, others = _subjects(request, test, x)
    _make_store(request.out)
    with progress_bar() as progress:
        study = Study(main, others, x, {}, request.case, lines, progress=progress)
        study.taggers |= _taggers(request, wanted, main, progress)
        chosen = choose(study, wanted)
        try:
            found = analyse(study, chosen, request.out, asked=bool(wanted))
        except KeyboardInterrupt:
            note("stopped; the same command continues from here")
            raise
    _show(found)
    for line in study.notes:
        note(line)
    note(f"written: {request.out / 'report.html'}")


def _wanted(what: str | None) -> list[str] | None:
    if what is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in what.split(",")))
    for name in names:
        if name not in ANALYSES:
            raise unknown("--what", name, ANALYSES)
    return names


def _test_set(request: Request) -> tuple[TestSet, list[int]]:
    """The sentences to analyse, and their lines in the file."""
    test = TestSet.read(request.source, request.reference)
    count, asked = len(test.sources), request.sentences
    if asked < 0:
        raise WaitinfoError(f"--sentences {asked}: must be 0, for all, or more")
    if request.case is not None and not 1 <= request.case <= count:
        raise WaitinfoError(f"--case {request.case}: {request.source} has lines 1 to {count:,}")
    kept = min(count, asked or count)
    rows = [number * count // kept for number in range(kept)]
    case = None if request.case is None else request.case - 1
    if case is not None and case not in rows:  # it takes the place of its neighbour
        neighbour = min(rows, key=lambda row: abs(row - case))
        rows = sorted({case, *rows} - {neighbour})
    part = replace(
        test,
        sources=[test.sources[i] for i in rows],
        references=[test.references[i] for i in rows],
    )
    return part, [i + 1 for i in rows]


def _make_store(out: Path) -> None:
    try:
        (out / STORE).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WaitinfoError(f"--out {out}: cannot be created ({error.strerror})") from None


# The systems


def _subjects(request: Request, test: TestSet, x: str) -> tuple[Subject, list[Subject]]:
    """The system, and those that it is compared with."""
    store = request.out / STORE
    first = load(request.model, request.device, request.dtype, request.system, request.settings)
    dials = _dials(first.system, "--k", request.k)
    main = Subject(_name(first, request.settings), Evaluation(first, test), dials, store, x)
    others: list[Subject] = []
    combinations = _combinations(request.against_settings)
    for settings in combinations:
        second = _second(request, first, settings)
        if second is None:
            break
        known = [first, *(other.evaluation.loaded for other in others)]
        if len(combinations) > 1 and any(_same(one, second) for one in known):
            continue  # one of the combinations changes nothing
        dials = _other_dials(request, first.system, second.system)
        name = _name(second, settings)
        if name == main.name:
            name = f"{name} ({second.folder.resolve().name})"
        others.append(Subject(name, Evaluation(second, test), dials, store, x))
        check_comparable(main, others[-1], x)
    if len(combinations) > 1 and second is not None and not others:
        given = " ".join(request.against_settings)
        raise WaitinfoError(f"--against-set {given}: changes nothing")
    return main, others


def _combinations(settings: Sequence[str]) -> list[list[str]]:
    """`catch_up=6,8` as two lists of settings: with 6 and with 8."""
    found: list[list[str]] = [[]]
    for setting in settings:
        name, _, values = setting.partition("=")
        each = [f"{name}={value}" for value in values.split(",")] if values else [setting]
        found = [[*before, one] for before in found for one in dict.fromkeys(each)]
    return found


def _same(first: LoadedModel, second: LoadedModel) -> bool:
    """Whether two systems are one: the same model decoded in the same way."""
    systems = [(type(loaded.system), loaded.system.options) for loaded in (first, second)]
    return systems[0] == systems[1] and first.folder.resolve() == second.folder.resolve()


def _name(loaded: LoadedModel, settings: Sequence[str]) -> str:
    """The system, with settings that are not its defaults."""
    options = loaded.system.options
    given = [setting.removeprefix("system.") for setting in settings]
    changed = [
        setting
        for setting in given
        if getattr(options, name := setting.partition("=")[0]) != getattr(type(options)(), name)
    ]
    return " ".join([loaded.system.name, *changed]).replace("/", "_")


def _other_dials(request: Request, first: System, second: System) -> list[float]:
    """Those given, or those of the first system if the second can have them, too."""
    given = request.against_k
    if given is None and second.name in BY_TOKENS and type(second.dial) is type(first.dial):
        try:
            return _dials(second, "--k", request.k)
        except WaitinfoError:  # as K = 2.5, where wait-k needs whole numbers
            return _dials(second, "--k", None)
    return _dials(second, "--against-k", given)


def _second(request: Request, first: LoadedModel, settings: list[str]) -> LoadedModel | None:
    """A second system: the one given, or the same model decoded by wait-k."""
    asked = request.against or request.against_system or settings
    system = request.against_system
    if not asked:
        fits = first.model.config.cross_attention == "plain"
        if not fits or first.model.config.encoder != "causal" or first.system.name != "wait-info":
            if request.against_k is not None:
                raise WaitinfoError("--against-k: no second system; give --against-system too")
            return None
        system = "multipath"
    elif request.against is None and system is None:
        system = first.system.name
    path = request.against or request.model
    return load(path, request.device, request.dtype, system, settings)


def _dials(system: System, option: str, given: str | None) -> list[float]:
    if given is not None:
        return [check_dial(system, k) for k in numbers(option, given)]
    if system.name in BY_TOKENS:
        return list(DIALS)
    return [check_dial(system, None)]


def _taggers(
    request: Request, wanted: Sequence[str] | None, main: Subject, progress: Progress
) -> dict[str, Tagger]:
    """Taggers for the sides that have tags, if they are needed."""
    given = {"source": request.source_tags, "target": request.target_tags}
    if (wanted and "pos" not in wanted) or not main.has_info:
        return {}
    return {
        side: make_tagger(f"--{side}-tags", values, progress)
        for side, values in given.items()
        if values
    }


# What is shown


def _show(found: dict[str, Numbers]) -> None:
    for name, numbers_ in found.items():
        for table in ANALYSES[name].tables(numbers_):
            print_table(_rich(table), table.title)


def _rich(table: Table) -> RichTable:
    """As narrow as its words; names of systems are never cut."""
    made = RichTable(padding=(0, 0), pad_edge=False)
    for number, head in enumerate(table.heads):
        text = number == 0 or table.textual
        made.add_column(
            escape(head), justify="left" if text else "right", overflow="fold",
            no_wrap=number == 0,
        )  # fmt: skip
    for row in table.rows:
        made.add_row(*map(escape, row))
    return made
