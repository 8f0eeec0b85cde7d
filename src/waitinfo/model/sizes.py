"""Named sizes of a Transformer."""

from __future__ import annotations

# Small, Base and Big are those of the paper.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"width": 128, "ffn": 256, "encoder_layers": 2, "decoder_layers": 2, "heads": 4},
    "small": {"width": 512, "ffn": 1024, "encoder_layers": 6, "decoder_layers": 6, "heads": 4},
    "base": {"width": 512, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6, "heads": 8},
    "big": {"width": 1024, "ffn": 4096, "encoder_layers": 6, "decoder_layers": 6, "heads": 16},
}
