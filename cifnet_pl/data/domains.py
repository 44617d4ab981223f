"""Read folders of domains, ``root/<domain>/<class>/…``, as PACS, Office-Home and DomainNet have them."""

from __future__ import annotations

import numpy as np

from cifnet_pl.data.folders import class_folders, existing, file_set, listing, require_classes
from cifnet_pl.data.image_sets import FileSet, Source, SourceOptions, place, split_by_seed
from cifnet_pl.utilities.errors import DataError

WHAT = "a folder with one sub-folder per domain, each with one sub-folder of images per class"


def domains(options: SourceOptions) -> Source:
    """Read ``root/<domain>/<class>/…``; a share of each class in each domain is held back by seed.

    A class may be missing in some domains. Learn the domains one after the other with ``--data.stream Domains``.

    Raises:
        DataError: no such folders, or one without an image.
    """
    with listing():
        root = existing(options, WHAT)
        domain_classes = {home.name: [path.name for path in class_folders(home)] for home in class_folders(root)}
        require_classes(list(domain_classes), root)
        for name, classes in domain_classes.items():
            require_classes(classes, root / name)
        class_names = sorted({name for classes in domain_classes.values() for name in classes})
        names: list[str] = []
        labels: list[int] = []
        groups: list[int] = []
        for i, (domain, classes) in enumerate(domain_classes.items()):
            domain_set = file_set(root / domain, classes)
            names += [f"{domain}/{name}" for name in domain_set.names]
            labels += [class_names.index(classes[label]) for label in domain_set.labels]
            groups += [i] * len(domain_set)
    source = split_by_seed(class_names, FileSet(root, names, labels), options, (list(domain_classes), np.array(groups)))
    for label, name in enumerate(class_names):
        if label not in source.train.rows_of:
            raise DataError(f"class '{name}' of {place(root)} has no training image: add some")
    return source
