"""Systems from elsewhere: plugins, and entry points of installed packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import called
from tests.streams import toy_model
from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.serving.hub import Plan
from waitinfo.systems import SYSTEMS, build_system, load_plugins
from waitinfo.trained.saving import save_model

pytestmark = pytest.mark.usefixtures("own_registry")

SLOW = """
from waitinfo.systems.wait_k import WaitK


class {cls}(WaitK):
    name = "{name}"
    summary = "waits twice as long"

    def ready(self, state):
        return state.complete | (state.read >= 2 * (state.written + state.k))
"""


def plugin(folder: Path, text: str, name: str = "slow") -> Path:
    file = folder / f"{name}.py"
    file.write_text(text, "utf-8")
    return file


def test_a_plugin_registers_its_systems(tmp_path: Path) -> None:
    with pytest.raises(WaitinfoError, match=r"unknown system 'slow'.*plugin FILE.py.*entry poin"):
        build_system("slow")
    file = plugin(tmp_path, SLOW.format(cls="Slow", name="slow"))
    assert load_plugins([file]) == ["slow"] and "slow" in SYSTEMS
    assert build_system("slow", {"k": 2}).options.k == 2
    plugin(tmp_path, SLOW.format(cls="Slow", name="slow").replace("twice", "three times"))
    assert load_plugins([file]) == ["slow"], "an edited file replaces what it defined"
    assert "three" in SYSTEMS["slow"].summary


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere", "slow.py: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f(:", "slow.py: SyntaxError: "),
        ("from waitinfo.systems.wait_k import WaitK", "slow.py: defines no system; subclass"),
        (SLOW.format(cls="Other", name="wait-k"), "system 'wait-k' already exists"),
        (
            SLOW.format(cls="A", name="a").replace("name =", "asks = ('weather',)\n    name ="),
            "unknown entry in the asks of A 'weather'; choose one of: source, target",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message) as caught:
        load_plugins([plugin(tmp_path, text)])
    assert "\n" not in str(caught.value)


def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WaitinfoError, match=r"plugin .*none.py: no such file"):
        load_plugins([tmp_path / "none.py"])


def test_an_error_of_a_policy_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone and in a batch, in streams and in the decoder; no traceback."""
    text = SLOW.format(cls="Weather", name="weather").replace("state.read", "state.sun")
    file = plugin(tmp_path, text, "weather")
    (tmp_path / "test").write_text("Guten Morgen.\n", "utf-8")
    given = ["--plugin", str(file), "--system", "weather"]
    test = [f"--{side}={tmp_path / 'test'}" for side in ("source", "reference")]
    for words in (["translate", "Hallo"], ["evaluate", *test, "--out", str(tmp_path / "points")]):
        with pytest.raises(SystemExit):
            main([*words, *given])
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith(f"waitinfo: plugin {file}, line 10, in ready: AttributeError: ")


def installed(folder: Path, entries: str) -> None:
    """What pip leaves of a package with these entry points."""
    facts = folder / "waits-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: waits\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text(f"[waitinfo.systems]\n{entries}\n", "utf-8")


def test_installed_packages_offer_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path, SLOW.format(cls="Slow", name="patient"), "waits")
    installed(tmp_path, "patient = waits:Slow\nwrong = waits:Slow\nbroken = waits:Nothing")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert build_system("patient", {"k": 4}).options.k == 4
    assert "patient" in SYSTEMS
    with pytest.raises(WaitinfoError, match="one of: full.*wait-info.*, patient, broken, wrong;"):
        build_system("impatient")
    with pytest.raises(WaitinfoError, match=r"'wrong' \(waits:Slow\): is not a system of that"):
        build_system("wrong")
    with pytest.raises(WaitinfoError, match=r"'broken' \(waits:Nothing\): AttributeError: "):
        build_system("broken")


def test_commands_know_a_plugin(tmp_path: Path) -> None:
    """A model that was trained by a plugin's system needs the plugin, unless another decodes it."""
    file = plugin(tmp_path, SLOW.format(cls="Slow", name="slow"))
    load_plugins([file])
    loaded, folder = toy_model(), tmp_path / "model"
    weights = loaded.model.weights()
    save_model(folder, loaded.model, weights, build_system("slow", {"k": 1}), loaded.vocabulary)
    del SYSTEMS._classes["slow"]
    SYSTEMS._names.remove("slow")

    call = "translate", "--model", folder, "ba be bi bo bu da de"
    refused = called(*call)
    assert refused.returncode == 2 and "unknown system 'slow'" in refused.stderr
    assert "--plugin FILE.py" in refused.stderr
    done = called(*call, "--plugin", file)
    assert done.returncode == 0 and done.stdout.strip()
    hub = Plan((folder,), 2, device="cpu", options={"k": 3}, plugins=(file,)).build()
    assert [(each.system.name, each.system.options.k) for each in hub.models] == [("slow", 3)]
    hub = Plan((folder,), 2, device="cpu", system="punctuation").build()
    assert [each.system.name for each in hub.models] == ["punctuation"]
    other = called(*call, "--system", "wait-k", "--set", "k=1")
    assert other.returncode == 0, "no plugin is needed to decode it by another system"
    assert called(*call, "--system", "wait-k", "--set", "k=1", "--plugin", file) == other
