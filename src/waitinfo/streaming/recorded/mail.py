"""What travels between host and device in a launch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from waitinfo.streaming.recorded.steps import ENCODE_IN, ENCODE_OUT, WRITE_IN, WRITE_OUT


class Mail:
    """Tables that travel between host and device, so that each direction takes one copy.

    Those of the encoder end where those of the writer begin.
    """

    def __init__(self, device: torch.device, tokens: int, rows: int) -> None:
        self.rows, self.device = rows, device
        self._middle_in, self._middle_out = ENCODE_IN * tokens, ENCODE_OUT * tokens
        pinned = device.type == "cuda"

        def buffers(size: int) -> tuple[Tensor, Tensor]:
            host = torch.zeros(size, dtype=torch.float64, pin_memory=pinned)
            return host, host.to(device)  # the same memory on a CPU

        self._in_host, self._in = buffers(self._middle_in + WRITE_IN * rows)
        self._out_host, self._out = buffers(self._middle_out + WRITE_OUT * rows)

    @staticmethod
    def fill(table: np.ndarray, scratch: int, *columns: np.ndarray) -> None:
        """Write columns into a table; rows behind them belong to the slot of scratch."""
        used = len(columns[0])
        for row, column in zip(table, columns, strict=True):
            row[:used] = column
        table[1:, used:] = 0
        table[0, used:] = scratch

    def to_encode(self, tokens: int) -> Tensor:
        return _before(self._in, self._middle_in, ENCODE_IN, tokens)

    def to_write(self, rows: int) -> Tensor:
        return _after(self._in, self._middle_in, WRITE_IN, rows)

    def from_encode(self, tokens: int) -> Tensor:
        return _before(self._out, self._middle_out, ENCODE_OUT, tokens)

    def from_write(self, rows: int) -> Tensor:
        return _after(self._out, self._middle_out, WRITE_OUT, rows)

    def encode_in(self, tokens: int) -> np.ndarray:
        return _before(self._in_host, self._middle_in, ENCODE_IN, tokens).numpy()

    def write_in(self, rows: int) -> np.ndarray:
        return _after(self._in_host, self._middle_in, WRITE_IN, rows).numpy()

    def encode_out(self, tokens: int) -> np.ndarray:
        return _before(self._out_host, self._middle_out, ENCODE_OUT, tokens).numpy()

    def write_out(self, rows: int) -> np.ndarray:
        return _after(self._out_host, self._middle_out, WRITE_OUT, rows).numpy()

    def send(self, tokens: int, rows: int) -> None:
        """Copy the inputs of a launch to the device."""
        if self._in is not self._in_host:
            used = slice(self._middle_in - ENCODE_IN * tokens, self._middle_in + WRITE_IN * rows)
            self._in[used].copy_(self._in_host[used], non_blocking=True)

    def fetch(self, tokens: int, rows: int) -> None:
        """Copy the results of a launch to the host, and wait for them."""
        if self._out is not self._out_host:
            used = slice(
                self._middle_out - ENCODE_OUT * tokens, self._middle_out + WRITE_OUT * rows
            )
            self._out_host[used].copy_(self._out[used], non_blocking=True)
            torch.cuda.current_stream(self.device).synchronize()


def _before(buffer: Tensor, middle: int, columns: int, rows: int) -> Tensor:
    """The table [columns, rows] that ends in the middle of a buffer."""
    return buffer[middle - columns * rows : middle].view(columns, rows)


def _after(buffer: Tensor, middle: int, columns: int, rows: int) -> Tensor:
    """The table [columns, rows] that begins in the middle of a buffer."""
    return buffer[middle : middle + columns * rows].view(columns, rows)
