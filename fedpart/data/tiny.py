"""TinyImagenet from an image folder: 200 classes, 64x64 pixels in colour."""

import os
from pathlib import Path

from fedpart.data.images import Images, cached_arrays, counted, folder_arrays
from fedpart.errors import DataError

SIDE = 64
NUM_CLASSES = 200
# Of the training images, a value a channel, in [0, 1].
MEAN = (0.4802, 0.4481, 0.3975)
STD = (0.2770, 0.2691, 0.2821)


def load_tinyimagenet(data_dir: str | None) -> Images:
    """``train/<class>/*`` and ``test/<class>/*`` in ``data_dir`` or its folder ``tinyimagenet``.

    There is no download. The labels of the official test set are not public, so what goes into
    ``test`` is the official validation set, sorted into classes. Grey images become colour ones.

    Raises:
        DataError: no such folder, or images that cannot be read.
    """
    named = data_dir or os.environ.get("FEDPART_DATA")
    places = [Path(named).expanduser() / "tinyimagenet", Path(named).expanduser()] if named else []
    place = next((p for p in places if (p / "train").is_dir()), None)
    if place is None:
        raise DataError(
            f"data-dir {named or 'is not given, and'} holds no TinyImagenet; put image folders "
            "train/<class>/* and test/<class>/* (the validation set) there or in its sub-folder "
            "tinyimagenet"
        )
    found = folder_arrays(place, NUM_CLASSES, (SIDE, SIDE), colour=True, grey_too=True)
    arrays = cached_arrays("tinyimagenet-folder", *found, place)
    return Images(
        arrays["train_images"],
        arrays["train_labels"],
        arrays.get("test_images"),
        arrays.get("test_labels"),
        source=counted(arrays, "images", f"from the image folder {place}"),
        num_classes=NUM_CLASSES,
        mean=MEAN,
        std=STD,
    )
