"""GSiMT against brute force: every path, every point, one decoder call per prefix."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_config
from tests.engines import restless, sentences, trickle
from tests.oracle import batch_of, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext, build_system, check_dial
from waitinfo.systems.networks.generative import (
    Actions,
    poisson_prior,
    prefix_groups,
    prior_divergence,
    send_groups,
)
from waitinfo.systems.networks.lattice import (
    NEVER,
    expected_cost,
    forward_scores,
    lattice_points,
    log_marginal,
)
from waitinfo.text.special import BOS, EOS, PAD

pytestmark = pytest.mark.usefixtures("loops_are_not_cut")

PAIRS = [([5, 6, 7, 8], [9, 10, 11]), ([12, 13], [14, 15, 16, 17]), ([18], [19]), ([4] * 6, [20])]


def all_paths(n: int, m: int) -> list[list[tuple[str, int, int]]]:
    """Every path as a list of actions and their points, without READs after the last WRITE."""
    paths = []
    # A path is given by the reads before each token: 1 <= g(1) <= … <= g(m) <= n.
    for path in itertools.combinations_with_replacement(range(1, n + 1), m):
        actions, i = [], 1
        for j, g in enumerate(path):
            actions += [("READ", k, j) for k in range(i, g)]
            actions.append(("WRITE", g, j))
            i = g
        paths.append(actions)
    return paths


def path_probability(actions: list[tuple[str, int, int]], w: Tensor, p: Tensor, n: int) -> Tensor:
    """w, p [S, T]: probabilities of WRITE and of the next token at each point."""
    product = torch.ones((), dtype=w.dtype)
    for kind, i, j in actions:
        write = w[i - 1, j] if i < n else torch.ones((), dtype=w.dtype)
        product = product * (write * p[i - 1, j] if kind == "WRITE" else 1 - write)
    return product


def random_lattice(lengths: list[tuple[int, int]], seed: int = 0, dtype=torch.float64):
    """Log-odds of WRITE, log-probabilities of tokens, and the mask of points: [B, S, T] each."""
    torch.manual_seed(seed)
    n, m = torch.tensor(lengths).unbind(-1)
    shape = (len(lengths), int(n.max()), int(m.max()))
    logits = (2 * torch.randn(shape, dtype=dtype)).requires_grad_()
    tokens = (-3 * torch.rand(shape, dtype=dtype)).requires_grad_()
    return logits, tokens, n, m, torch.arange(1, shape[1] + 1)[:, None] >= n[:, None, None]


LENGTHS = [(4, 3), (1, 4), (5, 1), (3, 5), (5, 5)]


@pytest.mark.parametrize("band", [0, 2])
def test_marginal_and_its_gradient_sum_over_all_paths(band: int) -> None:
    logits, tokens, n, m, complete = random_lattice(LENGTHS)
    points = lattice_points(n, m, 2, band)
    actions = Actions.of(logits, points, complete)
    found = log_marginal(actions.read, actions.write + tokens, m)
    expected = []
    for row, (sources, targets) in enumerate(LENGTHS):
        w, p = logits[row].sigmoid(), tokens[row].exp()
        paths = [
            path
            for path in all_paths(sources, targets)
            if all(points[row, i - 1, j] for _, i, j in path)
        ]
        total = sum(path_probability(path, w, p, sources) for path in paths)
        expected.append(torch.log(total))
    torch.testing.assert_close(found, torch.stack(expected))
    by_found = torch.autograd.grad(found.sum(), (logits, tokens))
    by_paths = torch.autograd.grad(sum(expected), (logits, tokens))
    torch.testing.assert_close(by_found, by_paths)


def test_paths_of_any_policy_sum_to_one() -> None:
    logits, _, n, m, complete = random_lattice(LENGTHS)
    actions = Actions.of(logits, lattice_points(n, m, 3, 0), complete)
    total = log_marginal(actions.read, actions.write, m)
    torch.testing.assert_close(total, torch.zeros_like(total))


def test_explicit_gradients_equal_finite_differences() -> None:
    """For any weights, not only probabilities that sum to one."""
    lengths = [(3, 2), (1, 3), (3, 3)]
    _, _, n, m, _ = random_lattice(lengths)
    points = lattice_points(n, m, 1, 0)
    read, write = (torch.randn(points.shape, dtype=torch.float64) for _ in range(2))
    cost = torch.randn(points.shape, dtype=torch.float64).requires_grad_()
    read, write = (x.masked_fill(~points, NEVER).requires_grad_() for x in (read, write))
    torch.autograd.gradcheck(lambda a, b: log_marginal(a, b, m), (read, write))
    torch.autograd.gradcheck(expected_cost, (read, write, cost))


@pytest.mark.parametrize("k", [1, 3])
def test_a_forced_policy_has_the_likelihood_of_its_only_path(k: int) -> None:
    """WRITE exactly from a lag of k on: wait-k."""
    _, tokens, n, m, complete = random_lattice(LENGTHS)
    i, j = torch.arange(1, 6)[:, None], torch.arange(5)
    logits = torch.where(i - j >= k, 40.0, -40.0).double().expand(tokens.shape)
    actions = Actions.of(logits, lattice_points(n, m, k, 0), complete)
    found = log_marginal(actions.read, actions.write + tokens, m)
    for row, (sources, targets) in enumerate(LENGTHS):
        path = [min(k + written, sources) for written in range(targets)]
        expected = sum(tokens[row, g - 1, written] for written, g in enumerate(path))
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_large_lattices_in_single_precision(spread: float) -> None:
    """Against float64, with probabilities that underflow many times over."""
    logits, tokens, n, m, complete = random_lattice([(100, 100), (100, 60), (30, 100)])
    points = lattice_points(n, m, 5, 10)
    results = []
    for dtype in (torch.float32, torch.float64):
        scaled = (spread * logits.detach()).to(dtype).requires_grad_()
        actions = Actions.of(scaled, points, complete)
        found = log_marginal(actions.read, actions.write + tokens.to(dtype), m)
        prior = poisson_prior(torch.ones(points.shape), 4).to(dtype)
        total = found.sum() - prior_divergence(actions, prior, points & ~complete)
        (gradient,) = torch.autograd.grad(total, scaled)
        results.append((found.double(), gradient.double()))
    (found, gradient), (exact, exact_gradient) = results
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(gradient, exact_gradient, rtol=1e-2, atol=1e-2)


def test_prior_by_hand() -> None:
    """P(L <= l) of a Poisson distribution of mean 2 is e^-2 (1 + 2 + 2 + 4/3 + …)."""
    lead = torch.tensor([-3, 0, 1, 2, 3, 50])
    terms = [1, 2, 2, 4 / 3]
    sums = [math.exp(-2) * sum(terms[: count + 1]) for count in range(4)]
    expected = torch.tensor([0.001, *sums, 0.999], dtype=torch.float64)
    torch.testing.assert_close(poisson_prior(lead, 2.0), expected)
    # Like wait-zeta: WRITE is the more probable action from a lead of zeta on.
    for zeta in range(1, 12):
        writes = poisson_prior(torch.arange(30), zeta) >= 0.5
        assert writes.tolist() == [ahead >= zeta for ahead in range(30)]


def test_divergence_equals_that_of_the_path_distributions() -> None:
    logits, _, n, m, complete = random_lattice(LENGTHS, seed=1)
    points = lattice_points(n, m, 2, 0)
    prior = torch.rand(logits.shape, dtype=torch.float64)
    found = prior_divergence(Actions.of(logits, points, complete), prior, points & ~complete)
    expected = torch.zeros((), dtype=torch.float64)
    ones = torch.ones(logits.shape[1:], dtype=torch.float64)
    for row, (sources, targets) in enumerate(LENGTHS):
        for path in all_paths(sources, targets):
            q = path_probability(path, logits[row].sigmoid(), ones, sources)
            p = path_probability(path, prior[row], ones, sources)
            expected = expected + q * (q / p).log()
    torch.testing.assert_close(found, expected)
    by_found, by_paths = (torch.autograd.grad(x, logits)[0] for x in (found, expected))
    torch.testing.assert_close(by_found, by_paths)


@pytest.mark.parametrize("lead", [0.0, 2.5, 9.0])
@pytest.mark.parametrize("band", [1, 3])
def test_a_band_has_the_right_points_and_a_complete_path(lead: float, band: int) -> None:
    lengths = [(7, 7), (20, 3), (3, 20), (1, 9), (9, 1), (12, 11)]
    n, m = torch.tensor(lengths).unbind(-1)
    points = lattice_points(n, m, lead, band)
    alpha = forward_scores(*(torch.where(points, 0.0, NEVER) for _ in range(2)))
    for row, (sources, targets) in enumerate(lengths):
        for i, j in itertools.product(range(1, points.shape[1] + 1), range(points.shape[2])):
            near = abs(i - j * sources // targets - lead) <= band
            if not (i <= sources and j < targets):
                assert not points[row, i - 1, j]
            elif near:
                assert points[row, i - 1, j]
        # Beyond the band there are only the points that a complete path needs.
        assert points[row].sum() <= targets * (2 * band + 2) + 2 * sources
        # Every point of the band is on a path, and a path can read the whole source.
        reached = alpha[row, :, :-1] > NEVER / 2
        assert torch.equal(reached & points[row], points[row])
        assert points[row, sources - 1, targets - 1]


def naive_scores(model: Transformer, batch) -> tuple[Tensor, Tensor]:
    """Log-odds of WRITE and log-probabilities [B, S, T, V], with one decoder call per prefix."""
    writes, tokens = [], []
    encoded = model.encode(model.embed_source(batch.source), batch.source_lengths)
    for i in range(1, batch.longest_source + 1):
        visible = torch.full(batch.target_in.shape, i)
        states = model.decode(model.embed_target(batch.target_in), encoded, visible).states
        writes.append(states @ model.write_head.weight[0] + model.write_head.bias)
        tokens.append(model.logits(states).log_softmax(-1))
    return torch.stack(writes, 1), torch.stack(tokens, 1)


@pytest.mark.parametrize("positions", [7, 40, 8192])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_one_decoder_call_for_each_prefix(
    tiny_model, monkeypatch, positions: int, smoothing: float
) -> None:
    """Loss and gradients are the same with and without packing, groups and recomputation."""
    monkeypatch.setattr("waitinfo.systems.networks.generative.LOGITS_AT_ONCE", 40 * 5)
    options = {"zeta": 2.0, "band": 2, "positions_at_once": positions, "prior_weight": 0.7}
    system = build_system("gsimt", options)
    model = restless(tiny_model(seed=2, write_head=True)).train()
    batch = batch_of(PAIRS, pad_to=8)
    context = LossContext(update=0, draw=random.Random(0), label_smoothing=smoothing)
    losses = system.loss(model, batch, context)

    write, tokens = naive_scores(model, batch)
    gold = tokens.gather(-1, batch.target_out[:, None, :, None].expand(-1, 7, -1, 1))[..., 0]
    scores = (1 - smoothing) * gold + smoothing * tokens.mean(-1)
    nll, likelihood, divergence = [], [], []
    points = lattice_points(batch.source_lengths, batch.target_lengths, 2.0, 2)
    for row, (n, m) in enumerate(batch.lengths):
        w, h = write[row].sigmoid(), torch.ones_like(write[row])
        for i, j in itertools.product(range(1, n + 1), range(m)):
            h[i - 1, j] = poisson_prior(torch.tensor(i - j * n // m), 2.0)
        paths = [p for p in all_paths(n, m) if all(points[row, i - 1, j] for _, i, j in p)]
        for found, token in ((likelihood, scores[row]), (nll, gold[row])):
            found.append(-sum(path_probability(p, w, token.exp(), n) for p in paths).log())
        reach = reaching(w, n, m, points[row])
        for i, j in itertools.product(range(1, n), range(m)):
            if points[row, i - 1, j]:
                a, b = w[i - 1, j], h[i - 1, j]
                local = a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()
                divergence.append(reach[i, j] * local)
    expected = sum(likelihood) + 0.7 * sum(divergence)
    torch.testing.assert_close(losses.total, expected)
    torch.testing.assert_close(losses.parts["nll"], sum(nll).detach())
    torch.testing.assert_close(losses.parts["prior"], sum(divergence).detach())
    parameters = list(model.parameters())
    by_system = torch.autograd.grad(losses.total, parameters)
    by_hand = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close(by_system, by_hand)


def reaching(w: Tensor, n: int, m: int, points: Tensor) -> dict[tuple[int, int], Tensor]:
    """The probability that a policy visits each point without leaving the lattice's points."""
    one = torch.ones((), dtype=w.dtype)
    reach = {(1, 0): one}
    for i, j in itertools.product(range(1, n + 1), range(m)):
        ways = [] if (i, j) != (1, 0) else [one]
        if i > 1 and points[i - 2, j]:
            ways.append(reach[i - 1, j] * (1 - w[i - 2, j]))
        if j > 0 and points[i - 1, j - 1]:
            ways.append(reach[i, j - 1] * (w[i - 1, j - 1] if i < n else one))
        reach[i, j] = sum(ways, 0 * one)
    return reach


def test_a_wide_band_is_the_whole_lattice(tiny_model) -> None:
    model, batch = restless(tiny_model(seed=2, write_head=True)), batch_of(PAIRS)
    context = LossContext(update=0, draw=random.Random(0), label_smoothing=0.1)
    whole, wide, narrow = (
        build_system("gsimt", {"band": band, "zeta": 1.0}).loss(model, batch, context)
        for band in (0, 20, 1)
    )
    torch.testing.assert_close(wide.total, whole.total)
    assert narrow.parts["nll"] > whole.parts["nll"]  # fewer paths give an upper bound


def test_no_row_is_computed_needlessly() -> None:
    lengths = [(30, 30), (25, 20), (8, 30)]
    n, m = torch.tensor(lengths).unbind(-1)
    points = lattice_points(n, m, 3, 4)
    groups = prefix_groups(points, 128)
    places = torch.cat([group.points for group in groups])
    assert sorted(places.tolist()) == points.flatten().nonzero()[:, 0].tolist()
    rows = [r for g in groups for r in zip(g.sentences.tolist(), g.prefixes.tolist(), strict=True)]
    assert sorted(rows) == [(b, i + 1) for b, (n, _) in enumerate(lengths) for i in range(n)]
    for group in groups:
        assert group.positions <= 128
        assert group.prefixes.max() <= group.sources
        furthest = torch.zeros(len(group.sentences), dtype=torch.long)
        furthest.scatter_reduce_(
            0, group.wanted // group.targets, group.wanted % group.targets, "amax"
        )
        assert group.targets - 8 <= furthest.min() <= furthest.max() < group.targets


def test_few_narrow_rows_join_wider_ones() -> None:
    lengths = [(14, 14), (13, 16), (15, 12)]
    n, m = torch.tensor(lengths).unbind(-1)
    points = lattice_points(n, m, 4, 8)
    apart, together = prefix_groups(points, 128), prefix_groups(points, 10**6)
    assert {group.targets for group in apart} == {8, 16}
    assert [group.targets for group in together] == [16]
    many = points.repeat(1000, 1, 1)  # joining these would add too much padding
    assert [group.targets for group in prefix_groups(many, 10**6)] == [8, 16]
    for groups in (apart, together):
        for group, sent in zip(groups, send_groups(groups, torch.device("cpu")), strict=True):
            for name, value in vars(group).items():
                assert torch.equal(torch.as_tensor(getattr(sent, name)), torch.as_tensor(value))
            row, written = group.wanted // group.targets, group.wanted % group.targets
            sentences, read = group.sentences[row], group.prefixes[row] - 1
            assert torch.equal((sentences * 15 + read) * 16 + written, group.points)


def test_recomputation_uses_the_same_dropout() -> None:
    """With other dropout, the gradient would belong to another loss; against finite differences."""
    torch.manual_seed(0)
    model = Transformer(tiny_config(write_head=True, dropout=0.3)).double().train()
    system, batch = build_system("gsimt", {"positions_at_once": 16}), batch_of(PAIRS)

    def loss() -> Tensor:
        torch.manual_seed(5)
        return system.loss(model, batch, LossContext(0, random.Random(0), 0.1)).total

    weight = model.decoder_layers[0].cross.out.weight
    direction = torch.randn_like(weight)
    (gradient,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        weight.add_(1e-5 * direction)
        above = loss()
        weight.sub_(2e-5 * direction)
        difference = (above - loss()) / 2e-5
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-5, atol=1e-5)


def test_whole_source_updates_train_like_full(tiny_model) -> None:
    model, batch = tiny_model(write_head=True), batch_of(PAIRS)
    context = LossContext(update=3, draw=random.Random(0), label_smoothing=0.1)
    found = build_system("gsimt", {"whole_source_updates": 4}).loss(model, batch, context)
    logits = model.logits(
        model.decode(
            model.embed_target(batch.target_in),
            model.encode(model.embed_source(batch.source), batch.source_lengths),
            batch.source_lengths[:, None].expand(batch.target_in.shape),
        ).states
    )
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD,
        reduction="sum", label_smoothing=0.1,
    )  # fmt: skip
    torch.testing.assert_close(found.total, expected)


def test_without_dropout_training_equals_validation(tiny_model) -> None:
    model, batch, system = tiny_model(write_head=True), batch_of(PAIRS), build_system("gsimt")
    training = system.loss(model, batch, LossContext(0, random.Random(0), 0.1))
    with torch.inference_mode():
        validation = system.loss(model, batch, LossContext(0, random.Random(0), k=0.5))
    torch.testing.assert_close(training.parts["nll"], validation.parts["nll"])
    torch.testing.assert_close(
        validation.total, validation.parts["nll"] + validation.parts["prior"]
    )


@pytest.fixture(scope="module")
def undecided_model() -> Transformer:
    """An untrained model that chooses READ about as often as WRITE."""
    torch.manual_seed(3)
    model = restless(Transformer(tiny_config(write_head=True)).double().eval())
    with torch.no_grad():
        model.write_head.weight.mul_(2)
    return model


@pytest.mark.parametrize("ending", ["guard", "allow"])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
def test_decoding_at_a_threshold(undecided_model, threshold: float, ending: str) -> None:
    system = build_system("gsimt")
    sources = sentences(12)
    found = Decoder(undecided_model, system, ending, slots=5).decode(sources, threshold)
    paths = set()
    dials = [threshold] * len(sources)
    expected = uncached_decodes(undecided_model, system, sources, dials, ending == "guard")
    for source, (tokens, path), hypothesis in zip(sources, expected, found, strict=True):
        assert hypothesis.path == path
        assert hypothesis.tokens == tokens[: len(hypothesis.tokens)]
        paths.add(tuple(g / (len(source) + 1) for g in path))
    assert len(paths) > 6, "the test needs a model with varied paths"


def test_streams_in_random_batches(undecided_model) -> None:
    system = build_system("gsimt")
    sources = sentences(24, seed=5)
    dials = [random.Random(i).choice([0.2, 0.5, 0.6, 0.9]) for i in range(len(sources))]
    records = trickle("gsimt", sources, dials, slots=7, seed=1, made=(undecided_model, system))
    early = 0
    expected = uncached_decodes(undecided_model, system, sources, dials)
    for source, (tokens, path), record in zip(sources, expected, records, strict=True):
        assert [event.token for event in record.writes] == tokens
        assert [event.read for event in record.writes] == path
        early += path[0] <= len(source)
    assert early > 6


def test_written_tokens_are_recomputed_only_for_a_longer_prefix(
    undecided_model, monkeypatch
) -> None:
    fed = []
    step = Transformer.step
    monkeypatch.setattr(
        Transformer,
        "step",
        lambda s, x, *a, **o: fed.append(x.at.shape[1]) or step(s, x, *a, **o),
    )
    found = Decoder(undecided_model, build_system("gsimt")).decode([[5, 6, 7, 8]], 1.0)[0]
    # Rejected at every prefix except the last, where it is written without recomputation.
    assert fed == [1] * (4 + len(found.path))


def test_bad_options() -> None:
    with pytest.raises(WaitinfoError, match="threshold must be a number from 0 to 1"):
        check_dial(build_system("gsimt"), 3)
    assert check_dial(build_system("gsimt"), None) == 0.5
    with pytest.raises(WaitinfoError, match="system.band -1: must be 0 or more"):
        build_system("gsimt", {"band": -1})
    with pytest.raises(WaitinfoError, match="positions_at_once 0: must be at least 1"):
        build_system("gsimt", {"positions_at_once": 0})


def test_decoding_equals_training(undecided_model) -> None:
    """Every decision and token equals that in the lattice of source and translation."""
    reads = 0
    for source in sentences(8, seed=9):
        found = Decoder(undecided_model, build_system("gsimt"), "allow").decode([source], 0.5)[0]
        write, tokens = naive_scores(undecided_model, batch_of([(source, found.tokens)]))
        tokens[..., [PAD, BOS]] = -torch.inf
        best, read = tokens[0].argmax(-1), 1
        for written, g in enumerate(found.path):
            for i in range(read, g):  # a READ, unless the length limit was reached
                assert write[0, i - 1, written] < 0 or written >= 2 * i + 10
            assert write[0, g - 1, written] >= 0 or g == len(source) + 1
            assert best[g - 1, written] == [*found.tokens, EOS][written]
            reads += g - read
            read = g
    assert reads > 8
