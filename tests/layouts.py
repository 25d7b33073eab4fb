"""Small copies of what data sets look like on disk, with real JPEGs of 12 x 8 pixels."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SUPERS = ("bicycle", "chair")


def jpeg(seed: int, size: tuple[int, int] = (12, 8)) -> bytes:
    """A picture like no other, as a JPEG file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def sop_archive(folder: Path, train: Sequence[int] = (3, 5, 4, 2, 6, 5), test: Sequence[int] = (4, 3, 5)) -> Path:
    """Stanford Online Products as in its archive, with classes of these sizes: ids from 1, test classes last."""
    number = 0
    for file, first, sizes in (("Ebay_train.txt", 1, train), ("Ebay_test.txt", 1 + len(train), test)):
        lines = ["image_id class_id super_class_id path"]
        for class_id, size in enumerate(sizes, first):
            for view in range(size):
                number += 1
                kind = class_id % len(SUPERS)
                path = f"{SUPERS[kind]}_final/{900 - class_id}_{view}.JPG"
                write(folder / path, jpeg(number))
                lines.append(f"{number} {class_id} {kind + 1} {path}")
        write(folder / file, "\n".join(lines) + "\n")
    return folder


def sop_prepared(data_dir: Path, archive: Path) -> Path:
    """The same as TensorFlow Datasets keeps it: shuffled, without names, and with class ids from 0."""
    import tensorflow_datasets as tfds

    def examples(file: str) -> Iterable[dict[str, Any]]:
        for line in (archive / file).read_text().splitlines()[1:]:
            _, class_id, kind, path = line.split(" ")
            ids = {"class_id": int(class_id) - 1, "super_class_id": int(kind) - 1, "super_class_id/num": int(kind) - 1}
            yield {**ids, "image": io.BytesIO((archive / path).read_bytes())}

    labels = {key: tfds.features.ClassLabel(num_classes=40) for key in ("class_id", "super_class_id")}
    return tfds_prepared(
        data_dir,
        "stanford_online_products",
        {"train": examples("Ebay_train.txt"), "test": examples("Ebay_test.txt")},
        {**labels, "super_class_id/num": tfds.features.ClassLabel(num_classes=40), "image": tfds.features.Image()},
    )


def tfds_prepared(
    data_dir: Path, dataset: str, parts: Mapping[str, Iterable[dict[str, Any]]], features: dict[str, Any]
) -> Path:
    """A data set as TensorFlow Datasets prepares it, readable without TensorFlow; returns its folder."""
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    with tfds.core.registered.skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):
            name = dataset
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

            def _split_generators(self, dl_manager):
                return {part: enumerate(examples) for part, examples in parts.items()}

            def _generate_examples(self):
                raise NotImplementedError

        builder = Builder(data_dir=data_dir, file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_dir)


def shapes_prepared(data_dir: Path) -> Path:
    """A data set of TensorFlow Datasets with a picture, a label, a name for it, and who took the picture."""
    import tensorflow_datasets as tfds

    def examples(start: int, count: int) -> Iterable[dict[str, Any]]:
        for i in range(start, start + count):
            yield {
                "image": io.BytesIO(jpeg(i)),
                "label": i % 4,
                "title": f"class {i % 4}",
                "user": f"user{i % 3}",
                "box": [0.0, 1.0],
            }

    features = {
        "image": tfds.features.Image(),
        "label": tfds.features.ClassLabel(num_classes=4),
        "title": tfds.features.Text(),
        "user": tfds.features.Text(),
        "box": tfds.features.Tensor(shape=(2,), dtype=np.float32),
    }
    return tfds_prepared(data_dir, "shapes", {"train": examples(0, 24), "test": examples(24, 8)}, features)


def landmarks(
    root: Path,
    *,
    images: str = "",
    nested: bool = False,
    tables: tuple[str, str] = ("federated_train.csv", "test.csv"),
    classes: Sequence[int] = (0, 1, 2, 3, 4),
) -> Path:
    """Landmarks-User-160k with 4 users of 3 to 9 pictures, and two test pictures a class."""
    rows, number = [], 0
    for user in range(4):
        for i in range(3 + 2 * user):
            rows.append((f"user{user}", f"{number:016x}", classes[(user + i) % len(classes)]))
            number += 1
    tests = [(f"{number + i:016x}", classes[i % len(classes)]) for i in range(2 * len(classes))]
    write(root / tables[0], "user_id,image_id,class\n" + "".join(f"{u},{i},{c}\n" for u, i, c in rows))
    write(root / tables[1], "image_id,class\n" + "".join(f"{i},{c}\n" for i, c in tests))
    for image in [image for _, image, _ in rows] + [image for image, _ in tests]:
        below = f"{'/'.join(image[:3])}/{image}.jpg" if nested else f"{image}.jpg"
        write(root / images / below, jpeg(int(image, 16)))
    return root


def class_folders(root: Path, sizes: Mapping[str, int], extension: str = ".jpg", first: int = 0) -> Path:
    """A folder of so many pictures for each class. ImageNet-21k is this with synsets for names."""
    for name, size in sizes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(size):
            write(root / name / f"{name}_{i}{extension}", jpeg(first))
            first += 1
    return root


def client_table(root: Path, name: str = "clients.csv") -> Path:
    """A table of three clients with pictures of four classes, as users write them."""
    rows = [(f"client{i % 3}", f"photos/{i}.jpg", ("10", "9", "ball", "cup")[i % 4]) for i in range(24)]
    for i, (_, image, _) in enumerate(rows):
        write(root / image, jpeg(i))
    return write(root / name, "client,image,label\n" + "".join(",".join(row) + "\n" for row in rows))
