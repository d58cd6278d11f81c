"""The clips that encoders of audio hear."""

from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
HOP = 160
# Rows and frames of a window of the tiny encoders.
ROWS = 48
FRAMES = 2 * ROWS


def clip(samples: int) -> np.ndarray:
    """[samples] in 16 bits: the formula of `tests/support/clip.rs`."""
    index = np.arange(samples, dtype=np.int64)
    return ((index * index * 7 + index * 13) % 2001 - 1000) * (1 + index // 700 % 4) * 8
