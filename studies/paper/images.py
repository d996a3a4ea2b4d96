"""The designs of tables 2 and 3: images read pixel by pixel, over learning rates that span seven decades.

Two readings of table 2. `paper` trains the layer of the paper's text: real, diagonal, discrete. `released` trains the layer of
the authors' code: S4D with complex eigenvalues, post-norm, weight decay of every parameter, a pooled split.
"""

from __future__ import annotations

from typing import Any

from studies.paper.designs import Design, Part, scaled, train

PIXELS = 784
RATES = (5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1, 5.0)
QUICK_RATES = (5e-2, 5e-1, 5.0)
LONGEST, SHORTEST = 0.99, 0.5  # initial eigenvalues at 784 pixels
TRAINED = ("eval_accuracy", 0.2)
CHANCE = "accuracy above 0.2; chance is 0.1"


def real(size: str) -> Design:
    """Table 2 with the layer of the paper's text."""
    full = size == "full"
    pool, width = (1, 16) if full else (2, 8)
    names = ("direct", "clip", "softplus", "exp", "best", "heavytail") if full else ("direct", "softplus", "exp", "best")
    # the layer has no step size: with fewer pixels, the eigenvalues themselves must forget faster per pixel
    power = pool * pool
    shape = {"d_model": width, "d_state": width, "n_layers": 1, "mlp_expansion": 0, "activation": "tanh"}
    span = [SHORTEST**power, LONGEST**power]
    variants = {
        name: {**shape, "eigenvalue_range": span, "reparameterization": {"name": name, "time": "discrete"}} for name in names
    }
    steps = 1000 if full else 150
    task = {"name": "mnist"} | ({} if full else {"pool": pool})
    base = {"task": task, "optimizer": {"schedule": "cosine"}, "train": train(steps, 16)}
    departures = [
        f"{width} features and {width} real eigenvalues instead of 64; batches of 16 instead of 128; "
        f"{steps:,} steps instead of 10 epochs (about 4,300 steps).",
        "direct starts at the same stable eigenvalues as every other map.",
        "The block normalises its input (pre-norm) and has a residual connection.",
    ]
    if not full:
        departures.append(
            f"Images are averaged over 2 x 2 pixels, so a sequence has 196 steps instead of 784. The initial eigenvalues are "
            f"raised to the power 4, from [0.5, 0.99] to [{span[0]:.4g}, {span[1]:.4g}], so that they forget as fast per image."
        )
    part = Part("main", base, variants, RATES if full else QUICK_RATES, "eval_loss", TRAINED)
    title = "Table 2, the layer of the paper's text"
    return Design("table2", "paper", size, title, (part,), tuple(departures), 12 if full else 4, CHANCE, 18 if full else 2)


def s4d_variants(shape: dict[str, Any], states: int, scale: float) -> dict[str, dict[str, Any]]:
    """The layer of the authors' code with each of its maps. scale: by how much step sizes grow because sequences are shorter."""
    layer = {"name": "s4d", "d_state": states, "dt_min": 1e-3 * scale, "dt_max": 0.1 * scale}
    sections: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "direct, unstable start": (layer | {"real_start": 0.5}, {"name": "direct"}),
        "direct": (layer, {"name": "direct"}),
        "softplus": (layer, {"name": "softplus"}),
        "exp": (layer, {"name": "exp"}),
        "best": (layer, {"name": "best", "b": 0.1}),
        "best, b = 0.5": (layer, {"name": "best", "b": 0.5}),
    }
    return {
        label: {**shape, "layer": dict(section), "reparameterization": {"time": "continuous", **map_}}
        for label, (section, map_) in sections.items()
    }


def _released_base(task: dict[str, Any], steps: int, batch_size: int) -> dict[str, Any]:
    return {
        "task": task,
        "optimizer": {"decay": "all", "weight_decay": 0.01, "schedule": "cosine"},
        "train": train(steps, batch_size),
    }


def released(size: str) -> Design:
    """Table 2 with the layer of the authors' code."""
    full = size == "full"
    width, states, batch = (16, 16, 32) if full else (8, 8, 16)
    steps = 500 if full else 100
    shape = {"d_model": width, "n_layers": 1, "mlp_expansion": 0, "block": "post_norm"}
    variants = s4d_variants(shape, states, 4.0)
    quick = ("direct, unstable start", "direct", "softplus", "exp", "best")
    task = {"name": "mnist", "pool": 2, "split": "pooled"}
    base = _released_base(task, steps, batch)
    chosen = variants if full else {label: variants[label] for label in quick}
    parts = [Part("main", base, chosen, RATES if full else QUICK_RATES, "eval_loss", TRAINED)]
    if full:
        long = s4d_variants(shape, states, 1.0)
        control = {label: long[label] for label in ("direct", "softplus", "exp", "best")}
        at_784 = _released_base({"name": "mnist", "split": "pooled"}, steps, batch)
        parts.append(Part("784 pixels", at_784, control, (5e-2,), "eval_loss", TRAINED, exploratory=True))
        four = s4d_variants(shape | {"n_layers": 4}, states, 4.0)
        deep = {label: four[label] for label in ("softplus", "exp", "best")}
        parts.append(Part("4 layers", base, deep, (5e-2, 5e-1), "eval_loss", TRAINED, exploratory=True))
    departures: tuple[str, ...] = (
        "Images are averaged over 2 x 2 pixels, so a sequence has 196 steps instead of 784. The step sizes dt are multiplied by "
        "4, so that dt times the length, and with it the memory per image, is unchanged.",
        f"{width} channels instead of 64 with {states // 2} conjugate pairs each instead of 32; batches of {batch} instead of "
        f"128; {steps:,} steps instead of 10 epochs (about 4,300 steps).",
        "direct starts twice: at λ = +0.5, which is unstable, as in the authors' code, and at λ = -0.5 like every other map.",
        "The map best has b = 0.1, as in the authors' code; the paper says 0.5.",
        "Training and test images are pooled and split again, as in the authors' code. The loss is that of the validation images "
        "at the last step; theirs is that of the test images at the best validation.",
        "The cosine falls at every step, not once per epoch, because a run sees less than one epoch.",
        "The convolutions over 196 steps are sums of products. The authors' code uses Fourier transforms, which lose the early "
        "sums of a kernel that grows, such as that of the unstable start, in the rounding errors of the late sums.",
    )
    departures += () if full else (scaled(500, steps, 3),)
    title = "Table 2, the layer of the authors' code"
    return Design("table2", "released", size, title, tuple(parts), departures, 12 if full else 3, CHANCE, 26 if full else 2)


def sample(size: str) -> Design:
    """Table 3 on a sample of CIFAR-10."""
    full = size == "full"
    width, states, batch = (16, 16, 16) if full else (8, 4, 8)
    shape = {"d_model": width, "n_layers": 1, "mlp_expansion": 0, "block": "post_norm"}
    labels = ("direct, unstable start", "direct", "softplus", "exp", "best")
    variants = {label: section for label, section in s4d_variants(shape, states, 1.0).items() if label in labels}
    steps = 200 if full else 30
    base = _released_base({"name": "cifar10", "colour": True}, steps, batch)
    rates = (5e-3, 5e-2, 5e-1, 5.0) if full else (5e-2, 5.0)
    departures = (
        "A sample of 4,000 training and 1,000 test images: this is not CIFAR-10, and no number here is comparable to table 3.",
        f"{width} channels instead of 64; batches of {batch} instead of 128; {steps:,} steps instead of 10 epochs.",
        "The sequences have their full length of 1,024 steps.",
    )
    part = Part("sample", base, variants, rates, "eval_loss", TRAINED, exploratory=True)
    title = "Table 3 on a sample that is not CIFAR-10"
    return Design("table3", None, size, title, (part,), departures, 12 if full else 2, CHANCE, 10 if full else 2)
