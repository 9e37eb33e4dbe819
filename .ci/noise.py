"""Write a tiny image folder of coloured noise, so that CIFAR commands run where it is not at hand.

``python .ci/noise.py DIR`` makes ``DIR/cifar10/train/<class>/*.png`` and ``.../test/...``.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
for part, each in (("train", 12), ("test", 2)):
    for label in range(10):
        folder = Path(sys.argv[1]) / "cifar10" / part / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(each):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
