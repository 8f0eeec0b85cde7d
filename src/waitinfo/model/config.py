"""The sizes and switches of a Transformer."""

from __future__ import annotations

from dataclasses import dataclass

from waitinfo.errors import WaitinfoError, unknown

# Small, Base and Big are those of the paper.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"width": 128, "ffn": 256, "encoder_layers": 2, "decoder_layers": 2, "heads": 4},
    "mini": {"width": 256, "ffn": 512, "encoder_layers": 3, "decoder_layers": 3, "heads": 4},
    "small": {"width": 512, "ffn": 1024, "encoder_layers": 6, "decoder_layers": 6, "heads": 4},
    "base": {"width": 512, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6, "heads": 8},
    "big": {"width": 1024, "ffn": 4096, "encoder_layers": 6, "decoder_layers": 6, "heads": 16},
}

CHOICES = {
    "encoder": ("causal", "bidirectional"),
    "norm": ("pre", "post"),
    "decoder": ("attention", "ssru"),
    "activation": ("relu", "swish"),
    "positions": ("closed", "open"),
    "info": ("none", "attention", "frequency", "norm"),
    "source_info": ("learned", "one"),
    "target_info": ("learned", "one"),
}


PLAIN = "plain"  # cross-attention
CROSS_ATTENTION_MODULES: dict[str, str] = {}  # by value of `model.cross_attention`


def cross_attention_in(name: str, module: str) -> None:
    """Say which module defines a cross-attention. It is imported when a model in torch needs it."""
    CROSS_ATTENTION_MODULES[name] = module


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Transformer, and where its info comes from."""

    source_vocabulary: int
    target_vocabulary: int
    joint: bool = True  # one vocabulary, and one embedding matrix, for both languages
    width: int = 512
    ffn: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm: str = "pre"  # layer norm before each sublayer, or after it ("post") as in the paper
    encoder: str = "causal"  # causal: a source state depends on earlier tokens only
    decoder: str = "attention"  # of the decoder to itself; "ssru": a recurrent unit instead
    activation: str = "relu"  # between the two products of a feed-forward sublayer
    output_bias: bool = False  # added to the scores of tokens
    epsilon: float = 1e-5  # of layer norms
    positions: str = "closed"  # rates of sinusoids from 1 to 1/10000, or "open": that left out
    first_position: int = 0
    cross_attention: str = PLAIN  # or that of a system
    info: str = "none"  # or learned ("attention"), from token "frequency" or embedding "norm"
    info_self_attention: bool = True  # self-attention is aware of info
    info_cross_attention: bool = True  # cross-attention prefers tokens of similar info
    info_dropout: bool = True  # info follows embedding dropout, as in the authors' code
    source_info: str = "learned"  # "one" fixes every source info to 1
    target_info: str = "learned"
    write_head: bool = False  # predict a probability of WRITE from each decoder state

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise unknown(f"model.{name}", getattr(self, name), allowed)
        for name in ("width", "ffn", "encoder_layers", "decoder_layers", "heads"):
            if getattr(self, name) < 1:
                raise WaitinfoError(f"model.{name} {getattr(self, name)}: must be at least 1")
        if self.width % self.heads:
            raise WaitinfoError(
                f"model.width {self.width} is not divisible by {self.heads} heads; "
                "choose a multiple"
            )
        if self.joint and self.source_vocabulary != self.target_vocabulary:
            raise WaitinfoError(
                f"model.joint true: source_vocabulary {self.source_vocabulary} and "
                f"target_vocabulary {self.target_vocabulary} must be equal"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.first_position < 0:
            raise WaitinfoError(f"model.first_position {self.first_position}: must be 0 or more")
        if not 0 < self.epsilon < 1:
            raise WaitinfoError(f"model.epsilon {self.epsilon}: must be between 0 and 1")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise WaitinfoError(f"model.{name} {getattr(self, name)}: must be in [0, 1)")

    @property
    def usual(self) -> bool:
        """Whether layers are those of the paper, which fused and compiled kernels compute."""
        return self.decoder == "attention" and self.activation == "relu" and not self.output_bias
