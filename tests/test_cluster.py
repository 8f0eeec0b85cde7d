"""On Ray Serve: two replicas that are killed under load, and nobody loses a word.

    python -m pytest -m cluster

Not among the usual tests, for Ray takes a while to start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.serving  # noqa: F401 (skips where the extra is missing)
from tests.redis_server import RedisServer
from tests.replicas import follow
from tests.streams import record, some_text, toy_model, wait_for
from waitinfo import AsyncClient, Translator, WaitinfoError
from waitinfo.serving.cluster import Scale, _replicas, build, start
from waitinfo.serving.guards import KeyLimits
from waitinfo.serving.hub import Plan
from waitinfo.serving.server import bind
from waitinfo.serving.settings import Settings
from waitinfo.trained.saving import load_model, save_model

CLIENTS, STREAMS = 8, 5  # of a replica, so that none has all clients
WATCHERS = 1_000
KEY = "a-secret-key"
TEXTS = [some_text(random.Random(seed), 40) for seed in range(CLIENTS)]


def test_numbers_of_replicas() -> None:
    assert Scale.parse("3") == Scale(3, 3)
    assert Scale.parse("1-8", cpus=2) == Scale(1, 8, cpus=2)
    for wrong in ("", "0", "a", "3-2", "-1", "1-b"):
        with pytest.raises(WaitinfoError, match="give a number, or a range"):
            Scale.parse(wrong)


def test_replicas_come_with_streams() -> None:
    """Of two models with 10 streams each, 14 are open where another replica is started."""
    plan = Plan(models=(Path("a"), Path("b")), streams=10)
    assert _replicas(plan, Scale(2, 2)) == {"num_replicas": 2}
    found = _replicas(plan, Scale(1, 4))["autoscaling_config"]
    assert (found["min_replicas"], found["max_replicas"]) == (1, 4)
    assert found["target_ongoing_requests"] == pytest.approx(14)


def test_every_stream_can_be_connected_to() -> None:
    plan = Plan(models=(Path("a"), Path("b")), streams=1280, settings=Settings(retry=7.0))
    assert plan.limits.connections >= 2560 and plan.limits.retry == 7.0
    assert Plan(streams=4).limits == Settings()


def test_bad_arguments() -> None:
    for wrong in (
        {"modle": "a"},
        {"streams": "many"},
        {"watchers": "all"},
        {"replicas": "x"},
        {"keys": "missing.toml"},
    ):
        with pytest.raises(WaitinfoError):
            build(wrong)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("cluster") / "toy"
    toy = toy_model()
    save_model(found, toy.model, toy.model.state_dict(), toy.system, toy.vocabulary)
    return found


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    found = RedisServer()
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(folder: Path, redis: RedisServer) -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    listening.close()
    plan = Plan((folder,), STREAMS, device="cpu", dtype="float32", keys=(KeyLimits(KEY),),
                settings=Settings(retry=0.1, rooms=redis.url))  # fmt: skip
    ray.init(num_cpus=2, include_dashboard=False, logging_level="warning")
    try:
        start(plan, Scale(2, 2), "127.0.0.1", port, log_level="warning")
        yield f"http://127.0.0.1:{port}"
    finally:
        ray.shutdown()


def replicas() -> list[str]:
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(a["name"] for a in found if a["name"].startswith("SERVE_REPLICA"))


def local(folder: Path, text: str) -> list[tuple]:
    toy = load_model(folder, "cpu", "float32")
    with Translator(toy, streams=1).stream(2, history=None) as stream:
        events = [event for word in text.split() for event in stream.push(word)]
        return record(events + stream.finish())


@pytest.mark.cluster
def test_a_killed_replica_changes_nothing(url: str, folder: Path) -> None:
    import ray

    async def talk(text: str, said: list[str], killed: asyncio.Event) -> tuple[list[tuple], int]:
        events = []
        async with AsyncClient(url, key=KEY, patience=600).stream(k=2) as stream:
            for n, word in enumerate(text.split()):
                if n == 20:
                    said.append(text)
                    await killed.wait()
                events += await stream.push(word, wait=n % 3 != 0)
            return record(events + await stream.finish()), stream.connections

    async def run() -> list[tuple[list[tuple], int]]:
        said: list[str] = []
        killed = asyncio.Event()
        talking = [asyncio.ensure_future(talk(text, said, killed)) for text in TEXTS]
        while len(said) < CLIENTS and not any(task.done() for task in talking):
            await asyncio.sleep(0.05)
        ray.kill(ray.get_actor(replicas()[0], namespace="serve"))
        killed.set()
        return list(await asyncio.gather(*talking))

    before = replicas()
    assert len(before) == 2
    found = asyncio.run(run())
    assert [events for events, _ in found] == [local(folder, text) for text in TEXTS]
    interrupted = sum(connections > 1 for _, connections in found)
    assert CLIENTS - STREAMS <= interrupted <= STREAMS
    wait_for(lambda: len(set(replicas()) - {before[0]}) == 2)  # another one takes its place


@pytest.mark.cluster
def test_a_room_of_two_replicas(url: str) -> None:
    """Both are killed, one after the other, and so the speaker's, too. All have its text."""
    import ray

    wait_for(lambda: len(replicas()) == 2)
    before = replicas()

    async def faults(number: int) -> None:
        if number in (20, 60):
            ray.kill(ray.get_actor(before.pop(), namespace="serve"))

    port = int(url.rpartition(":")[2])
    found = asyncio.run(follow(port, WATCHERS, " ".join(TEXTS), 90, 1 / 3, faults, KEY))
    assert found["complete"] == WATCHERS and found["words"] > 30
    assert found["speaker_connections"] > 1 and found["connections"] >= 2 * WATCHERS


@pytest.mark.cluster
def test_refusals_and_pages_through_the_ingress(url: str) -> None:
    import urllib.request

    async def without_a_key() -> str:
        return await AsyncClient(url, patience=5).translate("ba")

    with pytest.raises(WaitinfoError, match="key"):
        asyncio.run(without_a_key())
    for path, shown in (("/", "<title>"), ("/healthz", "ok"), ("/metrics", "waitinfo_streams")):
        with urllib.request.urlopen(url + path) as response:
            assert shown in response.read().decode()
