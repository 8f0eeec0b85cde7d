"""The process-wide setting for cuDNN attention belongs to the host application."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from tests.oracle import batch_of
from waitinfo.model.attention import without_cudnn_attention


def enabled() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()


@pytest.fixture(params=[True, False])
def setting(request: pytest.FixtureRequest):
    """The choice of the host application."""
    before = enabled()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(before)


class Model:
    """A stand-in for a model on a GPU."""

    device = torch.device("cuda")

    @without_cudnn_attention
    def seen(self, fail: bool = False) -> bool:
        if fail:
            raise RuntimeError("in the middle")
        return enabled()

    @without_cudnn_attention
    def nested(self) -> tuple[bool, bool]:
        return self.seen(), enabled()


def test_importing_and_calling_keep_the_setting() -> None:
    script = """
        import torch
        before = torch.backends.cuda.cudnn_sdp_enabled()
        import waitinfo
        waitinfo.load().translate("Guten Tag.")
        import waitinfo.training.trainer, waitinfo.evaluation.evaluate
        assert torch.backends.cuda.cudnn_sdp_enabled() == before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_it_is_off_during_a_call_and_restored_after(setting: bool) -> None:
    model = Model()
    assert model.seen() is False
    assert model.nested() == (False, False)
    assert enabled() is setting
    with pytest.raises(RuntimeError, match="in the middle"):
        model.seen(fail=True)
    assert enabled() is setting


def test_a_model_on_a_cpu_does_not_touch_it(setting: bool) -> None:
    class OnCPU(Model):
        device = torch.device("cpu")

    assert OnCPU().seen() is setting


def test_overlapping_threads_restore_it_after_the_last_one(setting: bool) -> None:
    inside, leave = threading.Barrier(3), [threading.Event() for _ in range(2)]
    seen: list[bool] = []

    class Slow(Model):
        @without_cudnn_attention
        def wait(self, number: int) -> None:
            inside.wait(600)
            leave[number].wait(600)
            seen.append(enabled())

    threads = [threading.Thread(target=Slow().wait, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(600)
    for number, thread in enumerate(threads):  # one leaves while the other is still inside
        leave[number].set()
        thread.join(600)
    assert seen == [False, False]
    assert enabled() is setting


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_pass_on_a_gpu_runs_without_it(
    tiny_model, monkeypatch: pytest.MonkeyPatch, setting: bool
) -> None:
    from waitinfo.model import attention

    seen: list[bool] = []
    real = attention.F.scaled_dot_product_attention

    def spy(*given: object, **named: object) -> torch.Tensor:
        seen.append(enabled())
        return real(*given, **named)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", spy)
    model = tiny_model().float().cuda()
    batch = batch_of([([5, 6, 7], [8, 9])]).to(torch.device("cuda"))
    source = model.embed_source(batch.source)
    encoded = model.encode(source, batch.source_lengths)
    visible = batch.source_lengths[:, None].expand(batch.target_in.shape)
    model.decode(model.embed_target(batch.target_in), encoded, visible)
    assert len(seen) == 6 and not any(seen)  # two encoder layers, two decoder layers twice
    assert enabled() is setting
