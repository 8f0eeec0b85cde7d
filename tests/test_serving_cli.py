"""`waitinfo serve` and `waitinfo translate --server` as typed."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.commands import parsed
from tests.served import Served
from waitinfo.cli.app import main
from waitinfo.cli.serve import ServeArguments, serve
from waitinfo.client.clients import Client
from waitinfo.errors import WaitinfoError

SENTENCE = "Guten Morgen!"
SEVERAL = ["--", "Guten Morgen. Wo ist hier der Bahnhof? Ich fahre heute nach Hause."]


def typed(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command in this process."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    return status, out.getvalue(), err.getvalue()


def test_a_server_and_its_command(tmp_path: Path) -> None:
    with Served() as server:
        url = server.url
        local = typed("translate", SENTENCE, "Das ist eine gute Idee.")
        remote = typed("translate", "--server", url, SENTENCE, "Das ist eine gute Idee.")
        assert remote == local and local[0] == 0 and local[1]
        path = typed("translate", "--server", url, "--show", "path", "--k", "3", SENTENCE)
        assert path == typed("translate", "--show", "path", "--k", "3", SENTENCE)
        paced = typed("translate", "--server", url, "--pace", "50", SENTENCE)
        assert paced == typed("translate", "--pace", "50", SENTENCE)
        for options in (["--segment", "none"], ["--segment", "whole"], ["--lag", "4"]):
            shown = ["--show", "path", *options, *SEVERAL]
            there = typed("translate", "--server", url, *shown)
            assert there == typed("translate", *shown) and there[0] == 0, options
        with Client(url, lag=4.0) as client:
            assert client.translate(SENTENCE) == client.translate(SENTENCE, k=5)
        status, _, told = typed("translate", "--server", url, "--lag", "99", SENTENCE)
        assert status == 2 and "calibrated for lags" in told
        status, _, told = typed("translate", "--server", url, "--model", "none", SENTENCE)
        assert status == 2 and "unknown model 'none'" in told
        server.stop()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--port 70000", "must be from 0 to 65535"), ("--streams 0", "must be from 1 to 100,000"),
        ("--host 0.0.0.0", "give --keys FILE, or --open"), ("--log-level loud", "choose one of"),
        ("--keys missing.toml", "cannot be read"), ("--idle 0", "seconds, 1 or more"),
        ("--drain -1", "seconds, 0 or more"),
        ("--watchers -1", "0 or more"), ("--from de --port 0", "a model of many languages"),
        ("--address-streams -1", "0 or more"),
        ("--origins example.org", "https://example.org"),
        ("--origins https://example.org/", "https://example.org,"),
        ("--secret nowhere", "cannot be read"),
        ("--rooms redis://a --keys KEYS", "the same --secret FILE"),
        ("--host 203.0.113.1 --open", "cannot be used"), ("--compare -1", "must be 0 or more"),
    ],
)  # fmt: skip
def test_bad_options(arguments: str, told: str, tmp_path: Path) -> None:
    (keys := tmp_path / "keys.toml").write_text('[stage]\nkey = "long-and-random"\n')
    status, _, err = typed("serve", *arguments.replace("KEYS", str(keys)).split())
    assert status == 2 and told in err.replace("\n", " ")


def test_options_of_the_server_alone() -> None:
    for option in (["--beam", "2"], ["--system", "full"], ["--set", "a=b"], ["--ending", "allow"]):
        status, _, err = typed("translate", "--server", "http://127.0.0.1:9", *option, "--", "a")
        assert status == 2 and "the server chooses" in err
    assert typed("translate", "--server", "nowhere", "a")[0] == 2
    file = ["--input", __file__, "--out", "out"]
    status, _, err = typed("translate", "--server", "http://127.0.0.1:9", *file)
    assert status == 2 and "leave out --server" in err


def test_several_models_after_one_flag() -> None:
    found = parsed("serve", "--model", "a", "b", "--origins", "x", "y")
    assert found["models"] == [Path("a"), Path("b")] and found["origins"] == ["x", "y"]


def test_two_models_of_one_name_are_refused() -> None:
    options = ServeArguments(
        models=[Path("de-en"), Path("de-en")], port=0, streams=1, compare=0, device="cpu",
        dtype="float32", threads=1, idle=1, drain=1, log_level="error",
    )  # fmt: skip
    with pytest.raises(WaitinfoError, match="another model is called de-en"):
        serve(options)
