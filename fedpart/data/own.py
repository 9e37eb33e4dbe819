"""What one device holds: all of it is one client's, and nothing else is known to the device."""

import zipfile
from pathlib import Path

import numpy as np

from fedpart.config import Config
from fedpart.data import cifar, sources
from fedpart.data.federated import FederatedData, load_upright
from fedpart.data.images import Images
from fedpart.data.readers import image_files, to_uint8
from fedpart.errors import DataError

# Shape of an image, number of classes, mean and deviation of channels.
_KINDS = {
    "mnist": ((1, sources.SIDE, sources.SIDE), sources.NUM_CLASSES, (), ()),
    "cifar10": ((3, cifar.SIDE, cifar.SIDE), cifar.NUM_CLASSES, cifar.MEAN, cifar.STD),
}


def load_own(config: Config, path: str, client_id: int) -> FederatedData:
    """The images of one client, as they are: nothing is chosen, rotated or split.

    Args:
        config: of the run; names the data set, which says how many classes there are.
        path: an ``.npz`` with ``images`` and ``labels``, or a folder as for ``data-dir``, whose
            training images count.
        client_id: whose they are; of other clients there are none.
    Raises:
        DataError: missing, damaged, images of another kind than the data set's, or class folders
            whose labels would depend on the device.
    """
    place = Path(path).expanduser()
    if place.suffix == ".npz":
        found = _read_npz(config, place)
    else:
        _check_names(config, place)
        found = load_upright(config.model_copy(update={"data_dir": str(place)}))
    nobody = np.arange(0)
    return FederatedData(
        name=config.dataset,
        num_classes=found.num_classes,
        in_channels=found.images.shape[1],
        images=found.images,
        labels=found.labels,
        angles=None,
        client_indices=(*[nobody] * client_id, np.arange(len(found.labels))),
        val_images=found.images[:0],
        val_labels=found.labels[:0],
        test_images=None,
        test_labels=None,
        source=f"{len(found.labels):,} images of client {client_id} from {place}",
        mean=found.mean,
        std=found.std,
    )


def _check_names(config: Config, place: Path) -> None:
    """Refuse folders of some classes by name, which count from 0: on another device from others."""
    kind = config.dataset.removeprefix("rot")
    if kind not in _KINDS:
        return
    num_classes = _KINDS[kind][1]
    for folder in (place / kind, place):
        parts = [folder / part for part in ("train", "test") if (folder / part).is_dir()]
        names = {name for part in parts for name in image_files(part)[0]}
        if len(names) < num_classes and not all(name.isdigit() for name in names):
            raise DataError(
                f"data-path {folder} has {len(names)} of the {num_classes} classes by name, and "
                "their labels would be others than on a device with other classes: name each "
                f"folder by its label, 0 to {num_classes - 1}, or have some of every class"
            )


def _read_npz(config: Config, path: Path) -> Images:
    kind = _KINDS.get(config.dataset.removeprefix("rot"))
    if kind is None:
        raise DataError(
            f"data-path {path}: .npz is for {' and '.join(_KINDS)}; name a folder, which the "
            f"function of {config.dataset} gets"
        )
    shape, num_classes, mean, std = kind
    try:
        # Opened here: NumPy leaves a file that is no archive open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"]
    except KeyError as error:
        raise DataError(f"{path} lacks an array: {error.args[0]}; it must hold both") from None
    # NumPy and zipfile raise each of these on damaged files; TypeError where it is a single array.
    except (OSError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise DataError(f"data-path {path} cannot be read as .npz ({error})") from None
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.shape[1:] != shape:
        sizes = ", ".join(map(str, shape[1:] if shape[0] == 1 else shape))
        raise DataError(f"images of {path} have shape {images.shape}; they must be [n, {sizes}]")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"labels of {path} are {labels.dtype} of shape {labels.shape}; they must be one whole "
            f"number for each of the {len(images):,} images"
        )
    if len(labels) == 0:
        raise DataError(f"{path} holds no images; put some there")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{path} holds labels {low} to {high}; they must be 0 to {num_classes - 1}")
    return Images(
        *(to_uint8(images, path), labels.astype(np.int64)),
        num_classes=num_classes,
        mean=mean,
        std=std,
    )
