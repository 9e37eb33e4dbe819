"""The paper's results of training in one place, as printed: accuracy and standard error [%].

Its figures of MNIST by data size, of the sensitivity grids and of the random search are pictures,
whose numbers its text does not give.

Source: Mlodozeniec et al. 2023, section 5: the tables of test accuracies by method, of
splits and fine-tuning, and of the feature extractor.
"""

Pair = tuple[float, float]

# (data set, model) -> method -> test accuracy; on all training images.
AFFINE: dict[tuple[str, str], dict[str, Pair]] = {
    ("rotcifar10", "fixup-resnet8"): {
        "none": (54.2, 0.4),
        "augerino": (75.4, 0.2),
        "partitioned": (79.1, 0.0),
    },
    ("cifar10", "fixup-resnet8"): {
        "none": (74.1, 0.5),
        "augerino": (79.0, 1.0),
        "partitioned": (86.1, 0.4),
    },
    ("cifar10", "fixup-resnet14"): {
        "none": (79.5, 0.3),
        "augerino": (83.0, 0.1),
        "partitioned": (89.1, 0.8),
    },
    ("rottinyimagenet", "resnet50"): {
        "none": (31.5, 0.6),
        "augerino": (44.5, 0.2),
        "partitioned": (43.9, 0.3),
    },
    ("tinyimagenet", "resnet50"): {
        "none": (44.2, 0.5),
        "augerino": (41.1, 0.2),
        "partitioned": (48.6, 0.0),
    },
}

# FixUp ResNet-14, 20,000 images of CIFAR10: share of the first of two chunks -> accuracy; None
# where "a run crashed".
CHUNKS: dict[str, dict[float, Pair | None]] = {
    "partitioned": {
        0.3: (82.9, 0.3),
        0.5: (83.0, 0.01),
        0.7: (83.7, 0.2),
        0.8: (84.0, 0.6),
        0.9: (84.6, 0.05),
    },
    "validation": {
        0.3: None,
        0.5: (78.9, 0.04),
        0.7: (81.5, 0.2),
        0.8: (82.6, 0.1),
        0.9: (83.4, 0.1),
    },
    "finetuned": {
        0.3: None,
        0.5: (81.3, 0.09),
        0.7: (82.5, 0.2),
        0.8: (83.5, 0.1),
        0.9: (83.8, 0.3),
    },
}

# Wide ResNet-20 on all of CIFAR10: method and chunks -> accuracy.
EXTRACTOR: dict[str, tuple[tuple[float, ...], Pair]] = {
    "validation": ((0.9, 0.1), (59.6, 0.6)),
    "partitioned": ((0.1, 0.8, 0.1), (87.3, 0.8)),
}
