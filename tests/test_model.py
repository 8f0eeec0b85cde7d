"""The Transformer: padding and other sentences change nothing; steps equal whole passes."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional as F

from tests.engines import TRAINED
from tests.oracle import batch_of, dial_near
from waitinfo.errors import WaitinfoError
from waitinfo.model import SIZES, ModelConfig, Transformer
from waitinfo.model.cache import CacheRows
from waitinfo.model.views import CachePosition
from waitinfo.systems import SYSTEMS, LossContext, build_system
from waitinfo.systems.networks.losses import whole_source

PAIRS = [([5, 6, 7, 8, 9], [10, 11, 12]), ([13], [14, 15, 16, 17]), ([20, 21], [22])]
KINDS = [
    {},
    {"encoder": "bidirectional"},
    {"info": "attention"},
    {"info": "attention", "encoder": "bidirectional", "norm": "post"},
    {"info": "attention", "info_self_attention": False},
    {"info": "attention", "info_cross_attention": False},
    {"info": "attention", "source_info": "one"},
    {"info": "norm", "target_info": "one"},
    {"info": "frequency"},
]


def forward(model: Transformer, batch, visible=None):
    source, target = model.embed_source(batch.source), model.embed_target(batch.target_in)
    encoded = model.encode(source, batch.source_lengths)
    visible = whole_source(batch) if visible is None else visible
    return model.logits(model.decode(target, encoded, visible).states)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_padding_and_other_sentences_change_nothing(tiny_model, kind: dict) -> None:
    model = tiny_model(**kind)
    together = forward(model, batch_of(PAIRS, pad_to=16))
    for row, pair in enumerate(PAIRS):
        alone = forward(model, batch_of([pair]))
        length = len(pair[1]) + 1
        torch.testing.assert_close(together[row, :length], alone[0, :length], rtol=1e-9, atol=1e-9)


def distinctness(states: torch.Tensor) -> float:
    """The share of encoder states that tells the positions of a sentence apart."""
    own = states - states.mean(1, keepdim=True)
    return float(own.square().sum() / states.square().sum())


@torch.no_grad()
def seen_states(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    found = []
    last = model.encoder_layers[-1]
    handle = last.register_forward_hook(lambda _, given, made: found.append(made))
    model.encode(model.embed_source(tokens), torch.full((len(tokens),), tokens.shape[1]))
    handle.remove()
    return found[0]


def test_positions_are_distinct_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a deep encoder that sees both ways, with norms after its sublayers, does not learn."""
    config = ModelConfig(500, 500, width=64, ffn=128, heads=4, encoder_layers=6, decoder_layers=1,
                         encoder="bidirectional", norm="post", dropout=0.0)  # fmt: skip
    tokens = torch.randint(4, 500, (8, 60), generator=torch.Generator().manual_seed(1))
    shares = {}
    for name in ("now", "before"):
        if name == "before":
            monkeypatch.setattr(Transformer, "_shrink_encoder", lambda model: None)
        torch.manual_seed(1)
        shares[name] = distinctness(seen_states(Transformer(config).eval(), tokens))
    assert shares["now"] > 2 * shares["before"], shares


@pytest.mark.parametrize("changes", [{"encoder": "causal"}, {"norm": "pre"}], ids=str)
def test_other_encoders_start_as_they_did(changes: dict) -> None:
    """Xavier's bound of every encoder matrix is reached, not one of a smaller gain."""
    torch.manual_seed(1)
    values = {"encoder": "bidirectional", "norm": "post", "width": 64, "ffn": 64, **changes}
    for layer in Transformer(ModelConfig(50, 50, **values)).encoder_layers:
        bound = (6 / 128) ** 0.5
        assert layer.attention.out.weight.abs().max() > 0.9 * bound
        assert layer.feed_forward.out.weight.abs().max() > 0.9 * bound


@pytest.mark.parametrize("name", TRAINED)
def test_loss_is_a_sum_over_sentences(tiny_model, name: str) -> None:
    system = build_system(name, {"whole_source_updates": 0})
    model = tiny_model(**system.model_defaults)

    def loss(pairs, pad_to=0):
        context = LossContext(update=0, draw=None, label_smoothing=0.1, k=dial_near(system, 2))
        return system.loss(model, batch_of(pairs, pad_to), context).total

    together = loss(PAIRS, pad_to=16)
    torch.testing.assert_close(together, sum(loss([pair]) for pair in PAIRS))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_torch(tiny_model, smoothing: float) -> None:
    model, batch = tiny_model(), batch_of(PAIRS, pad_to=9)
    context = LossContext(update=0, draw=None, label_smoothing=smoothing, k=2)
    losses = build_system("wait-k").loss(model, batch, context)
    visible = build_system("wait-k").path(batch, None, None, 2)
    logits = forward(model, batch, visible).flatten(0, 1)
    gold = batch.target_out.flatten()
    options = {"ignore_index": 0, "reduction": "sum"}
    expected = F.cross_entropy(logits, gold, label_smoothing=smoothing, **options)
    torch.testing.assert_close(losses.total, expected)
    torch.testing.assert_close(losses.parts["nll"], F.cross_entropy(logits, gold, **options))


def test_masked_source_has_no_effect(tiny_model) -> None:
    model = tiny_model(info="attention")
    visible = torch.tensor([[2, 3, 4, 4]])
    base = forward(model, batch_of([([5, 6, 7, 8, 9], [10, 11, 12])]), visible)
    other = forward(model, batch_of([([5, 6, 7, 30, 31], [10, 11, 12])]), visible)
    torch.testing.assert_close(base[0, :2], other[0, :2])
    assert not torch.allclose(base[0, 2], other[0, 2])


def test_visible_prefix_may_differ_by_head(tiny_model) -> None:
    model = tiny_model()
    batch = batch_of([PAIRS[0]])
    shared = torch.tensor([[2, 3, 4, 5]])
    by_head = shared[:, None].expand(1, 4, 4).clone()
    torch.testing.assert_close(forward(model, batch, shared), forward(model, batch, by_head))
    by_head[:, 1] = 6
    assert not torch.allclose(forward(model, batch, shared), forward(model, batch, by_head))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_steps_equal_a_whole_pass(tiny_model, kind: dict) -> None:
    """Rows at different positions, one token at a time, with the cache."""
    model = tiny_model(**kind)
    batch = batch_of(PAIRS)
    visible = torch.tensor([[2, 3, 6, 6, 6], [1, 1, 2, 2, 2], [2, 3, 3, 3, 3]])
    whole = forward(model, batch, visible)
    encoded = model.encode(model.embed_source(batch.source), batch.source_lengths)
    caches = model.new_caches(2, 3, 5)
    everyone = CacheRows.of(range(3), model.device)
    place = torch.tensor([0, 0, 0])
    moves = [[1, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 1, 0], [1, 1, 0]]
    rows = torch.arange(3)
    for move in moves:
        tokens = batch.target_in[rows, place][:, None]
        target = model.embed_target(tokens, place[:, None])
        seen = visible[rows, place][:, None]
        where = CachePosition(everyone, place[:, None], int(place.max()) + 1)
        states = model.step(target, encoded, seen, caches, where).states
        found = model.logits(states)[:, 0]
        torch.testing.assert_close(found, whole[rows, place], rtol=1e-9, atol=1e-9)
        place = torch.minimum(place + torch.tensor(move), batch.target_lengths - 1)


def test_states_of_a_causal_encoder_never_change(tiny_model) -> None:
    model = tiny_model(info="attention")
    short = model.embed_source(torch.tensor([[5, 6, 7]]))
    long = model.embed_source(torch.tensor([[5, 6, 7, 8, 9, 3]]))
    a = model.encode(short, torch.tensor([3])).memories[-1].keys
    b = model.encode(long, torch.tensor([6])).memories[-1].keys
    torch.testing.assert_close(a, b[:, :, :3])


def test_info_learns_only_from_attention_and_sum_loss(tiny_model) -> None:
    """Without both attentions and the sum loss, the mask alone gives info no gradient."""
    system = build_system("wait-info", {"whole_source_updates": 0, "info_weight": 0.0})
    for switches, learns in (((False, False), False), ((True, False), True), ((False, True), True)):
        model = tiny_model(
            info="attention", info_self_attention=switches[0], info_cross_attention=switches[1]
        )
        context = LossContext(update=0, draw=None, k=1)
        system.loss(model, batch_of(PAIRS), context).total.backward()
        gradient = model.source_info.quantizer.out.weight.grad
        assert (gradient is not None and bool(gradient.abs().sum() > 0)) is learns


def test_sizes_equal_the_paper() -> None:
    assert SIZES["base"] == {
        "width": 512, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6, "heads": 8,
    }  # fmt: skip
    assert SIZES["small"]["ffn"] == 1024 and SIZES["small"]["heads"] == 4
    assert SIZES["big"]["width"] == 1024 and SIZES["big"]["heads"] == 16


def test_bad_configurations() -> None:
    with pytest.raises(WaitinfoError, match="is not divisible by 3 heads"):
        ModelConfig(10, 10, width=32, heads=3)
    with pytest.raises(WaitinfoError, match=r"unknown model.norm 'middle'; choose one of: pre"):
        ModelConfig(10, 10, norm="middle")
    with pytest.raises(WaitinfoError, match="joint"):
        ModelConfig(10, 20, joint=True)


def test_joint_vocabulary_shares_one_matrix() -> None:
    joint = Transformer(ModelConfig(50, 50, width=32, heads=4, ffn=32))
    separate = Transformer(ModelConfig(50, 60, width=32, heads=4, ffn=32, joint=False))
    assert joint.source_embedding is joint.target_embedding
    assert "target_embedding.weight" not in joint.weights()
    assert separate.parameter_count() == joint.parameter_count() + 60 * 32


@pytest.mark.parametrize("name", [n for n in TRAINED if not SYSTEMS[n].plans_by_length])
def test_a_dial_drawn_beforehand_gives_the_same_loss(tiny_model, name: str) -> None:
    """As in a recorded update: drawn on the host, passed as a number on the device."""
    system = build_system(name)
    model = tiny_model(seed=2, **system.model_defaults)
    batch = batch_of([([5, 6, 7, 8, 9], [10, 11, 12]), ([5, 6], [12, 13, 14, 15])])
    update = 10**6
    drawn = LossContext(update, random.Random(3), 0.1)
    dial = system.training_dial(batch, drawn)
    handed = LossContext(update, None, 0.1, dial=torch.tensor(float(dial)))
    torch.manual_seed(0)
    expected = system.loss(model, batch, LossContext(update, random.Random(3), 0.1))
    torch.manual_seed(0)
    found = system.loss(model, batch, handed)
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-12)
