"""Package structure: which part may import which, and what runs without torch."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.evaluations import point
from tests.torchless import run_without

SOURCE = Path(__file__).resolve().parents[1] / "src" / "waitinfo"
FILES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}

# Parts that each part may import, besides the small modules at the top.
MAY_IMPORT = {
    "text": set(),
    "model": {"text"},
    "systems": {"model", "text"},
    "trained": {"model", "systems", "text"},
    "importing": {"model", "systems", "text", "trained"},
    "streaming": {"importing", "model", "systems", "text", "trained"},
    "translation": {"model", "streaming", "systems", "text", "trained"},
    "distillation": {"model", "streaming", "systems", "text", "trained", "translation"},
    "evaluation": {
        "listening",
        "model",
        "streaming",
        "systems",
        "text",
        "trained",
        "translation",
    },
    "training": {
        "evaluation",
        "importing",
        "model",
        "streaming",
        "systems",
        "text",
        "trained",
        "translation",
    },
    "analysis": {"evaluation", "model", "streaming", "systems", "text", "trained", "translation"},
    "listening": {"model", "streaming", "systems", "text", "trained"},
    "serving": {"importing", "listening", "model", "streaming", "systems", "text", "trained"},
    "client": {"streaming", "text"},
}
TOP = {"config", "errors", "lazy", "progress", "storage", "threads"}
CORE = {"numpy", "safetensors", "sentencepiece", "torch"}
# Parts outside the core, each with an extra of its own.
PACKAGES = {
    "serving": {"fastapi", "prometheus_client", "lxml", "pydantic", "starlette", "uvicorn"},
    "client": {"websockets"},
}
# Further imports of a part, only inside functions: extras or large packages.
EXTRAS = {
    "text": {"zstandard"},
    "importing": {"huggingface_hub"},
    "evaluation": {"comet", "matplotlib", "sacrebleu"},
    "training": set(),
    "analysis": {"spacy", "stanza"},
    "listening": {"faster_whisper", "onnx_asr", "onnxruntime", "sounddevice", "soundfile", "vosk"},
    "serving": {"ray", "redis"},
}


def imports(path: Path, inside: bool) -> Iterator[str]:
    """Full names of the imports of a file, at the top or inside its functions."""

    def walk(node: ast.AST, within: bool) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import) and within == inside:
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and within == inside:
                assert child.module and not child.level, f"{path}: a relative import"
                for alias in child.names:
                    name = f"{child.module}.{alias.name}"
                    yield name if name in FILES else child.module
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, within or function)

    yield from walk(ast.parse(path.read_text("utf-8")), False)


def part(module: str) -> str:
    """text, model, …; a module at the top is its own part."""
    return module.split(".")[1] if "." in module else "waitinfo"


@cache
def at_import(module: str) -> frozenset[str]:
    """Our modules and other packages that a module imports directly."""
    found = set(imports(FILES[module], inside=False))
    parents = module.split(".")
    found |= {".".join(parents[:n]) for n in range(1, len(parents))}
    return frozenset(name if name in FILES else name.split(".")[0] for name in found)


def everything(module: str) -> set[str]:
    """Our modules and other packages that a module imports directly or indirectly."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += at_import(name) if name in FILES else []
    return seen


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_parts_import_what_is_below_them(name: str) -> None:
    for module, path in FILES.items():
        if part(module) != name:
            continue
        for inside in (False, True):
            for other in imports(path, inside):
                if other.split(".")[0] == "waitinfo":
                    allowed = {name, *MAY_IMPORT[name], *TOP, "waitinfo"}
                    assert part(other) in allowed, f"{module} imports {other}"


def test_the_core_needs_four_packages() -> None:
    for module, path in FILES.items():
        name = part(module)
        if name not in {*MAY_IMPORT, *TOP}:
            continue
        allowed = CORE | sys.stdlib_module_names | {"waitinfo"}
        allowed |= PACKAGES.get(name, set())
        if module.startswith(("waitinfo.model.kernels", "waitinfo.streaming.recorded.kernels")):
            allowed = allowed | {"triton"}
        for other in imports(path, inside=False):
            assert other.split(".")[0] in allowed, f"{module} imports {other}"
        for other in imports(path, inside=True):
            extra = EXTRAS.get(name, set())
            assert other.split(".")[0] in allowed | extra, f"{module} imports {other}"


def test_nothing_is_imported_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module in done:
            return
        for other in sorted(at_import(module)):
            if other in FILES and not module.startswith(f"{other}."):
                visit(other, (*above, module))
        done.add(module)

    for module in FILES:
        visit(module, ())


# All other modules can be imported without torch.
NEED_TORCH = re.compile(
    r"waitinfo\.(training\.(?!display|__)|analysis\.(?!summaries|tagger)|importing\.(?!sources)|"
    r"distillation\.|systems\.networks\.|streaming\.recorded|trained\.tensors|"
    r"translation\.(beam|search)|"
    r"model\.(attention|batch|cache|info|kernels|layers|loss|row_layers|transformer)|"
    r"model\.integers\.(measuring|in_torch))"
)


def test_what_translates_and_serves_imports_no_torch() -> None:
    for module in FILES:
        if not NEED_TORCH.match(module):
            assert "torch" not in everything(module), module


def without_torch(code: str, *arguments: str) -> str:
    found = run_without(("torch", "safetensors"), code, *arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


def command(*arguments: str) -> str:
    return without_torch("from waitinfo.cli import main; main()", *arguments)


def test_the_package_and_its_names_are_listed_without_torch() -> None:
    found = without_torch("""
        import waitinfo
        from waitinfo.systems import SYSTEMS
        from waitinfo.trained.folder import bundled_models
        print(waitinfo.__version__, *dir(waitinfo), *SYSTEMS, *bundled_models())
    """)
    assert {"load", "Translator", "wait-info", "de-en"} <= set(found.split())


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("--version", "0."),
        ("--help", "translate"),
        ("train --help", "adaptive-wait-k"),
        ("translate --help", "--pace"),
        ("evaluate --help", "--reference"),
        ("analyse --help", "--source-tags"),
        ("distill --help", "--teacher"),
        ("models", "veto"),
        ("models de-en", "de-en"),
    ],
)
def test_commands_that_compute_nothing_start_without_torch(arguments: str, shown: str) -> None:
    assert shown in command(*arguments.split())


def test_compare_needs_no_torch(tmp_path: Path) -> None:
    for name, k, bleu in (("a", 1, 20), ("a", 5, 25), ("b", 1, 22), ("b", 5, 24)):
        text = json.dumps(point(name, k, 1.5 * k, bleu))
        (tmp_path / f"{name}-{k}.json").write_text(text, "utf-8")
    out = tmp_path / "curves.svg"
    assert "interpolated" in command("compare", str(tmp_path), "--out", str(out))
    assert out.stat().st_size


def test_prepare_needs_no_torch(tmp_path: Path) -> None:
    pairs = [(f"wort {a} und {b}", f"word {a} and {b}") for a in range(9) for b in range(9)]
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    command("prepare", "--tsv", str(tsv), "--vocab", "words:1", "--out", str(tmp_path / "corpus"))
    assert (tmp_path / "corpus" / "corpus.json").exists()


def test_each_equation_of_the_paper_has_one_home() -> None:
    """One line of the package names each of equations 4 to 12, as docs/model.md says."""
    sources = [p.read_text("utf-8") for end in ("py", "c", "h") for p in SOURCE.rglob(f"*.{end}")]
    named = Counter(int(n) for text in sources for n in re.findall(r"Eq\. (\d+)", text))
    assert all(named[number] == 1 for number in range(4, 13)), named
    page = (SOURCE.parents[1] / "docs" / "model.md").read_text("utf-8")
    homes = re.findall(r"^\| ([\d, ]+) \| .* \| `(?:\w+\.)?(\w+)` in `(.+)` \|$", page, re.M)
    assert sorted(int(n) for row, _, _ in homes for n in row.split(", ")) == list(range(4, 13))
    for row, name, file in homes:
        text = (SOURCE / file).read_text("utf-8")
        assert re.search(rf"(def|class) {name}\b", text), name
        assert all(f"Eq. {number}" in text for number in row.split(", ")), row


def test_no_test_imports_another() -> None:
    """What tests share stands in modules of its own."""
    for path in Path(__file__).parent.rglob("*.py"):
        found = {*imports(path, inside=False), *imports(path, inside=True)}
        assert not [name for name in found if name.startswith("tests.test_")], path
