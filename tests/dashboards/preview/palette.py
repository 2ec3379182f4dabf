"""A picture with 256 colours instead of thousands, so that its file is small.

The one decision: the most frequent colours stay exactly as they are, and the others are the ones that would be missed
most. Averaged ones, as Pillow makes them by itself, turn a thin orange line grey, and the colour of a threshold is what
a preview has to show.
"""

import numpy as np
import numpy.typing as npt
from PIL import Image

_EXACT, _ALL = 96, 256
_Numbers = npt.NDArray[np.int64]


def reduced(image: Image.Image) -> Image.Image:
    """The picture in a palette of 256 colours that are all in it."""
    pixels = np.asarray(image).astype(np.int64)
    codes = (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]
    found, place, count = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, (found >> 8) & 255, found & 255], axis=1)
    chosen, nearest = _chosen(colours, count)
    small = Image.fromarray(nearest.astype(np.uint8)[place.reshape(codes.shape)])
    small.putpalette(colours[chosen].astype(np.uint8).tobytes())
    return small


def _chosen(colours: _Numbers, count: _Numbers) -> tuple[list[int], _Numbers]:
    """Which colours are kept, and for each colour the place of the nearest one among them."""
    frequent = np.argsort(-count, kind="stable")[:_EXACT]
    chosen: list[int] = []
    distance = np.full(len(colours), np.iinfo(np.int64).max)
    nearest = np.zeros(len(colours), dtype=np.int64)
    for turn in range(min(_ALL, len(colours))):
        missed = int(frequent[turn]) if turn < len(frequent) else int((distance * np.sqrt(count)).argmax())
        to_it = ((colours - colours[missed]) ** 2).sum(axis=1)
        nearest = np.where(to_it < distance, len(chosen), nearest)
        distance = np.minimum(distance, to_it)
        chosen.append(missed)
    return chosen, nearest
