"""Where records keep image and label, in each format; and what a label may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from feeder.errors import ConfigError

__all__ = [
    "BAD",
    "DEFAULT_KEYS",
    "FORMATS",
    "MAX_LABEL",
    "FormatName",
    "Keys",
    "RecordKeys",
    "Unusable",
    "is_format",
    "zero_based",
]

MAX_LABEL = 2**31 - 1
"""Labels are int32 in the index and on the wire."""

_SHOWN = 80

BAD = -1
"""Label of a record that cannot be used; reading it says why."""

FormatName = Literal["tfrecord", "webdataset", "parquet", "folder"]

FORMATS: tuple[FormatName, ...] = get_args(FormatName)


class Unusable(ValueError):
    """A record holds no usable image and label; the text is the reason."""


@dataclass(frozen=True)
class Keys:
    """Where the records of one format keep what is read of them.

    Attributes:
        image: feature, column or member suffixes of the encoded image.
        label: feature, column or member suffixes of the class.
        label_base: label of the first class in the records, which is subtracted.
    """

    image: str
    label: str
    label_base: int

    def __post_init__(self) -> None:
        if not self.image or not self.label or self.image == self.label:
            raise ConfigError(
                f"image and label keys must be two names, got {self.image!r} and {self.label!r}"
            )
        for key in (self.image, self.label):
            if any(
                "\ud800" <= letter <= "\udfff" for letter in key
            ):  # bytes of a command line that are no text
                raise ConfigError(f"image and label keys must be text in UTF-8, got {key!r}")
        if not -MAX_LABEL <= self.label_base <= MAX_LABEL:
            raise ConfigError(f"label base must be a class number such as 0 or 1, got {self.label_base}")


DEFAULT_KEYS: dict[FormatName, Keys] = {
    # The names of the reference ImageNet converters, which keep label 0 for background.
    "tfrecord": Keys("image/encoded", "image/class/label", 1),
    "webdataset": Keys("jpg;jpeg;png;webp", "cls;json", 0),
    "parquet": Keys("image", "label", 0),
    "folder": Keys("file", "folder", 0),
}


@dataclass(frozen=True)
class RecordKeys:
    """What the user says of the keys; None leaves it to the format (DEFAULT_KEYS).

    Attributes:
        image: TFRecord: the feature with the encoded image. WebDataset: suffixes, the first that is there
            counts, such as "jpg;png". Parquet: a binary column, or one of structs with a field `bytes`.
        label: TFRecord: the feature with the class. WebDataset: suffixes such as "cls" or "json"
            (the value of "label" in the object) or "json:NAME". Parquet: a column of integers.
        label_base: label of the first class in the records (1 in the reference's TFRecords, where 0 is
            background; 0 in the other formats).
    """

    image: str | None = None
    label: str | None = None
    label_base: int | None = None

    def __post_init__(self) -> None:
        self.of("tfrecord")

    def of(self, name: FormatName) -> Keys:
        """The keys for records of a format; image folders have none.

        Raises:
            ConfigError: they are not two different names, or the label base is no class number.
        """
        default = DEFAULT_KEYS[name]
        if name == "folder":
            return default
        return Keys(
            default.image if self.image is None else self.image,
            default.label if self.label is None else self.label,
            default.label_base if self.label_base is None else self.label_base,
        )


def is_format(name: str) -> bool:
    """Whether there is a format of this name."""
    return name in FORMATS


def zero_based(label: int, keys: Keys) -> int:
    """The class number, from 0, of a label as it is stored.

    Raises:
        Unusable: it is negative or does not fit int32.
    """
    number = label - keys.label_base
    if not 0 <= number <= MAX_LABEL:
        bound = f"start at {keys.label_base}" if number < 0 else f"end at {keys.label_base + MAX_LABEL}"
        raise Unusable(f"label {keys.label!r} is {str(label)[:_SHOWN]}; labels here {bound}")
    return number
