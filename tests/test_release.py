"""`make release`: the new version in all places, and nothing done where it cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / ".ci" / "release.py"
NAME = ("-c", "user.name=A", "-c", "user.email=a@example.org")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *NAME, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "A")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "a@example.org")
    (tmp_path / "src" / "waitinfo").mkdir(parents=True)
    code = 'VALUE = 1\n__version__ = "1.9.3"\n'
    (tmp_path / "src" / "waitinfo" / "__init__.py").write_text(code)
    (tmp_path / "CITATION.cff").write_text("title: a\nversion: 1.9.3\nlicense: b\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.9.3\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def release(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        check=False,
        cwd=project,
        capture_output=True,
        text=True,
    )


def test_a_release_is_committed_and_tagged(project: Path) -> None:
    done = release(project, "1.10.0")
    assert done.returncode == 0, done.stderr
    assert git(project, "describe") == "v1.10.0"
    assert not git(project, "status", "--porcelain")
    code = (project / "src" / "waitinfo" / "__init__.py").read_text()
    assert code == 'VALUE = 1\n__version__ = "1.10.0"\n'
    title, version, date, licence = (project / "CITATION.cff").read_text().splitlines()
    assert (title, version, licence) == ("title: a", "version: 1.10.0", "license: b")
    day = date.removeprefix("date-released: ")
    assert f"## 1.10.0 ({day})\n\n- New." in (project / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "change", "message"),
    [
        (["1.10"], None, "three numbers"),
        ([], None, "three numbers"),
        (["1.9.3"], None, "not later than 1.9.3"),
        (["1.10.0"], "# Changelog\n\n## 1.9.3\n", "not committed"),
    ],
)
def test_what_cannot_be_released_changes_nothing(
    project: Path, arguments: list[str], change: str | None, message: str
) -> None:
    if change is not None:
        (project / "CHANGELOG.md").write_text(change)
    before = git(project, "status", "--porcelain")
    done = release(project, *arguments)
    assert done.returncode and message in done.stderr and done.stderr.count("\n") == 1
    assert git(project, "status", "--porcelain") == before
    assert not git(project, "tag")


def test_a_release_needs_a_change(project: Path) -> None:
    (project / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.9.3\n\n- Old.\n")
    git(project, "commit", "--quiet", "--all", "--message", "Take it back")
    done = release(project, "2.0.0")
    assert done.returncode and "nothing to release" in done.stderr
