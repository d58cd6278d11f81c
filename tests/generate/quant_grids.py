#!/usr/bin/env python3
"""Writes shaders/quant/grids/*.bin: the tables of the formats whose codes are indices of whole cells of values.

The tables come from the `gguf` Python package (`pip install gguf`). A file holds one little-endian u16 for each entry: the
codes of the cell's values, the first value in the lowest bits. A code is the position of its integer in the format's list.
Run from the repository root:  python tests/generate/quant_grids.py
"""

from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path("shaders/quant/grids")

# The file of each table, and the class of the package that has it.
GRIDS = {
    "iq2_xxs": quants.IQ2_XXS,
    "iq2_xs": quants.IQ2_XS,
    "iq2_s": quants.IQ2_S,
    "iq3_xxs": quants.IQ3_XXS,
    "iq3_s": quants.IQ3_S,
    "iq1": quants.IQ1_S,
}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, source in GRIDS.items():
        source.init_grid()
        entries, values = source.grid_shape
        cells = source.grid.reshape(entries, values)
        codes = np.searchsorted(np.array(source.grid_map, np.float32), cells).astype(np.uint16)
        bits = 16 // values if values == 8 else 3
        shifts = np.arange(values, dtype=np.uint16) * np.uint16(bits)
        packed = np.bitwise_or.reduce(codes << shifts, axis=1).astype("<u2")
        (OUT / f"{name}.bin").write_bytes(packed.tobytes())
        print(f"{name}: {entries} cells of {values} values")


if __name__ == "__main__":
    main()
