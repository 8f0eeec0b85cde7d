"""`waitinfo analyse`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Option
from waitinfo.cli.options import ModelOptions, numbers, use_threads
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.systems import check_dial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waitinfo.analysis.study import Subject
    from waitinfo.analysis.tagger import Tagger
    from waitinfo.evaluation.evaluate import TestSet
    from waitinfo.progress import Progress
    from waitinfo.systems import System
    from waitinfo.trained.saving import LoadedModel

STORE = "translations"
DIALS = (1.0, 3.0, 5.0, 7.0, 9.0)
BY_TOKENS = ("wait-info", "veto", "wait-k", "multipath", "moe-wait-k")  # systems with such dials


@dataclass(kw_only=True)
class AnalyseArguments(ModelOptions):
    """What `analyse` is given."""

    source: Annotated[Path, Option(help="Test sentences, one per line.")]
    reference: Annotated[Path, Option(help="Their translations.")]
    out: Annotated[Path, Option(help="Folder for numbers, pictures and report.html.")]
    what: Annotated[
        str | None,
        Option(
            help="pos, ratio, early-stop, attention, case, difficulty, significance, separated "
            "by commas [default: all that can be made]."
        ),
    ] = None
    k: Annotated[
        str | None, Option(help="Dial values, for example 1,3,5 [default: 1,3,5,7,9].")
    ] = None
    against: Annotated[
        Path | None, Option(help="A second model or run folder, to compare with.")
    ] = None
    against_system: Annotated[
        str | None,
        Option(
            help="Decode the second one with this system [default: its own with --against or "
            "--against-set; else multipath, which is wait-k with any k]."
        ),
    ] = None
    against_set: Annotated[
        list[str],
        Option(
            help="An option of the second system, as catch_up=6; with several values, as "
            "catch_up=0,6,10, significance compares with each."
        ),
    ] = field(default_factory=list)
    against_k: Annotated[
        str | None, Option(help="Its dial values [default: those of --k, or its own].")
    ] = None
    source_tags: Annotated[
        list[str],
        Option(
            help="For pos: a file of tagged source words to train a tagger on and one to test it "
            "on (word, tab, UPOS tag), or spacy:MODEL or stanza:LANGUAGE."
        ),
    ] = field(default_factory=list)
    target_tags: Annotated[list[str], Option(help="The same for the target language.")] = field(
        default_factory=list
    )
    case: Annotated[
        int | None,
        Option(help="Line of the sentence for the case study [default: the first short one]."),
    ] = None
    sentences: Annotated[
        int, Option(help="Analyse this many, spread over the test set [default: all].")
    ] = 0
    x: Annotated[
        str, Option(help="Latency that systems are compared at: paper.AL, word.LAAL, …")
    ] = "paper.AL"


def analyse(options: AnalyseArguments) -> None:
    """Analyse a model: what its info measures, where it stops early, where policies differ.

    Writes one JSON per analysis, its pictures (PNG and SVG), and report.html with all of them.
    The second system is, if none is given, the same model decoded by wait-k. Translations are
    kept in the folder: the same command continues an interrupted analysis.

    Examples:

        waitinfo analyse --model run --source test.de --reference test.en --out analysis

        waitinfo analyse --source test.de --reference test.en --what case --case 7 --out case

        waitinfo analyse --source test.de --reference test.en --what pos --out pos \\
            --source-tags de.train.tsv de.test.tsv --target-tags en.train.tsv en.test.tsv

        waitinfo analyse --model run --against multipath-run --what significance …

        waitinfo analyse --source test.de --reference test.en --what significance --out catch-up \\
            --against-system multipath --against-set catch_up=0,6,8,10
    """
    from waitinfo.analysis.analyses import ANALYSES, choose
    from waitinfo.analysis.analyses import analyse as make
    from waitinfo.analysis.study import Study
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.cli.tables import summary_table
    from waitinfo.evaluation.curves import LATENCIES, check_axis
    from waitinfo.evaluation.plot import pyplot
    from waitinfo.evaluation.points import UNLIKE, unlike
    from waitinfo.evaluation.quality import check_installed

    wanted = _wanted(options.what)
    x = check_axis("--x", options.x)
    if x not in LATENCIES:
        raise WaitinfoError(f"--x {options.x}: must be a latency, as paper.AL or word.LAAL")
    test, lines = _test_set(options)
    check_installed()
    pyplot()
    use_threads(options.threads)
    if options.out.exists() and not options.out.is_dir():
        raise WaitinfoError(f"--out {options.out}: is a file; give a folder")
    main, others = _subjects(options, test, x)
    _make_store(options.out)
    with progress_bar() as progress:
        study = Study(main, others, x, {}, options.case, lines, progress=progress)
        if unlike(subject.evaluation.model_facts for subject in (main, *others)):
            study.notes.append(UNLIKE)
        study.taggers |= _taggers(options, wanted, main, progress)
        chosen = choose(study, wanted)
        try:
            found = make(study, chosen, options.out, asked=bool(wanted))
        except KeyboardInterrupt:
            note("stopped; the same command continues from here")
            raise
    for name, figures in found.items():
        for table in ANALYSES[name].tables(figures):
            summary_table(table)
    for line in study.notes:
        note(line)
    note(f"written: {options.out / 'report.html'}")


def _wanted(what: str | None) -> list[str] | None:
    if what is None:
        return None
    from waitinfo.analysis.analyses import ANALYSES

    names = list(dict.fromkeys(name.strip() for name in what.split(",")))
    for name in names:
        if name not in ANALYSES:
            raise unknown("--what", name, ANALYSES)
    return names


def _test_set(options: AnalyseArguments) -> tuple[TestSet, list[int]]:
    """The sentences to analyse, and their lines in the file."""
    from waitinfo.evaluation.evaluate import TestSet

    test = TestSet.read(options.source, options.reference)
    count, asked = len(test.sources), options.sentences
    if asked < 0:
        raise WaitinfoError(f"--sentences {asked}: must be 0, for all, or more")
    if options.case is not None and not 1 <= options.case <= count:
        raise WaitinfoError(f"--case {options.case}: {options.source} has lines 1 to {count:,}")
    kept = min(count, asked or count)
    rows = [number * count // kept for number in range(kept)]
    case = None if options.case is None else options.case - 1
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


def _subjects(options: AnalyseArguments, test: TestSet, x: str) -> tuple[Subject, list[Subject]]:
    """The system, and those that it is compared with."""
    from waitinfo.analysis.study import Subject, check_comparable
    from waitinfo.evaluation.evaluate import Evaluation

    store = options.out / STORE
    first = options.load(options.model)
    dials = _dials(first.system, "--k", options.k)
    main = Subject(_name(first, options.settings), Evaluation(first, test), dials, store, x)
    others: list[Subject] = []
    combinations = _combinations(options.against_set)
    for settings in combinations:
        second = _second(options, first, settings)
        if second is None:
            break
        known = [first, *(other.evaluation.loaded for other in others)]
        if len(combinations) > 1 and any(_same(one, second) for one in known):
            continue  # one of the combinations changes nothing
        dials = _other_dials(options, first.system, second.system)
        name = _name(second, settings)
        if name == main.name:
            name = f"{name} ({second.folder.resolve().name})"
        others.append(Subject(name, Evaluation(second, test), dials, store, x))
        check_comparable(main, others[-1], x)
    if len(combinations) > 1 and second is not None and not others:
        given = " ".join(options.against_set)
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


def _other_dials(options: AnalyseArguments, first: System, second: System) -> list[float]:
    """Those given, or those of the first system if the second can have them, too."""
    given = options.against_k
    if given is None and second.name in BY_TOKENS and type(second.dial) is type(first.dial):
        try:
            return _dials(second, "--k", options.k)
        except WaitinfoError:  # as K = 2.5, where wait-k needs whole numbers
            return _dials(second, "--k", None)
    return _dials(second, "--against-k", given)


def _second(
    options: AnalyseArguments, first: LoadedModel, settings: list[str]
) -> LoadedModel | None:
    """A second system: the one given, or the same model decoded by wait-k."""
    asked = options.against or options.against_system or settings
    system = options.against_system
    if not asked:
        shape = first.model.config
        fits = shape.cross_attention == "plain" and shape.encoder == "causal"
        if not fits or first.system.name not in ("wait-info", "veto"):
            if options.against_k is not None:
                raise WaitinfoError("--against-k: no second system; give --against-system too")
            return None
        system = "multipath"
    elif options.against is None and system is None:
        system = first.system.name
    path = options.against or options.model
    return replace(options, system=system, settings=settings).load(path)


def _dials(system: System, option: str, given: str | None) -> list[float]:
    if given is not None:
        return [check_dial(system, k) for k in numbers(option, given)]
    if system.name in BY_TOKENS:
        return list(DIALS)
    return [check_dial(system, None)]


def _taggers(
    options: AnalyseArguments, wanted: Sequence[str] | None, main: Subject, progress: Progress
) -> dict[str, Tagger]:
    """Taggers for the sides that have tags, if they are needed."""
    from waitinfo.analysis.tagger import make_tagger

    given = {"source": options.source_tags, "target": options.target_tags}
    if (wanted and "pos" not in wanted) or not main.has_info:
        return {}
    return {
        side: make_tagger(f"--{side}-tags", values, progress)
        for side, values in given.items()
        if values
    }
