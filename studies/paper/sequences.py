"""The designs of table 7 and figures 3 and 4: recall of pairs, polynomial memory and text."""

from __future__ import annotations

from typing import Any

from studies.paper.designs import Design, Part, scaled, train

TEXT = "wikitext-2/train.txt.xz"
UNIGRAM = 2.9  # nats per character: less than this needs more than the frequencies of the characters


def recall(size: str) -> Design:
    """Table 7: associative recall with the Hyena mixer around S5."""
    full = size == "full"
    maps: dict[str, dict[str, Any]] = {
        "best": {"name": "best", "time": "continuous", "b": 0.1},
        "exp": {"name": "exp", "time": "continuous"},
        "clip": {"name": "clip", "time": "continuous"},
        "direct": {"name": "direct", "time": "continuous"},
    }
    layer = {"name": "hyena", "inner": {"name": "s5", "d_state": 16}}
    shape = {"layer": layer, "n_layers": 2, "d_model": 32, "mlp_expansion": 2}
    variants = {label: {**shape, "reparameterization": map_} for label, map_ in maps.items()}

    def part(name: str, length: int, vocabulary: int, steps: int, batch: int, **more: Any) -> Part:
        task = {"name": "associative_recall", "length": length, "vocabulary_size": vocabulary, "train_sequences": 4000}
        optimizer = {"weight_decay": 0.1, "warmup_steps": steps // 10, "schedule": "cosine"}
        base = {"task": task, "optimizer": optimizer, "train": train(steps, batch)}
        return Part(name, base, variants, (0.005,), "eval_accuracy", ("eval_accuracy", bound(vocabulary)), **more)

    parts = [part("T = 20", 20, 10, 3000 if full else 150, 16)]
    if full:
        parts += [
            part("T = 256", 256, 30, 400, 8, exploratory=True, seeds=4),
            part("T = 1,024", 1024, 30, 150, 4, exploratory=True, seeds=2),
        ]
    departures = (
        f"d_model 32 instead of 64, S5 state 16 instead of 32; {3000 if full else 150:,} steps at learning rate 0.005 instead of "
        "50,000 at 0.001.",
        "A Hyena mixer with an S5 layer inside; direct starts at the same stable eigenvalues as every other map.",
        "The lengths 256 and 1,024 show a trend. They are not the 131,072 tokens of the paper.",
    )
    title = "Table 7, associative recall with 20 tokens"
    chance = "accuracy on the last token twice as high as guessing among the values"
    return Design("table7", None, size, title, tuple(parts), departures, 12 if full else 4, chance, 11 if full else 2)


def bound(vocabulary: int) -> float:
    """Twice the accuracy of guessing among the values, which are half of the ordinary tokens."""
    return 2 / ((vocabulary - 2) // 2)


def ratios(size: str) -> Design:
    """Figure 3 (a): the largest |grad| / |w| while linear functionals with polynomial memory are learnt."""
    full = size == "full"
    names = ("direct", "relu", "clip", "softplus", "exp", "tanh", "best", "heavytail")
    shape = {"d_model": 16, "d_state": 16, "eigenvalue_range": [0.6, 0.99], "activation": "tanh"}
    variants = {name: {**shape, "reparameterization": {"name": name, "time": "discrete"}} for name in names}
    base = {"task": {"name": "polynomial_memory", "length": 100}, "train": train(100, 32)}
    departures = (
        "16 real eigenvalues between 0.6 and 0.99 with every map: below 0.5 the ratio of softplus is singular, because its "
        "weight crosses 0.",
        "100 steps of AdamW at learning rate 0.01, batches of 32 instead of 512; our block with pre-norm and a residual "
        "connection.",
        "Beside the paper's maps: clip and heavytail.",
    )
    part = Part("main", base, variants, (0.01,), "largest_ratio")
    title = "Figure 3 (a), gradient over weight during training"
    return Design("fig3", None, size, title, (part,), departures, 12 if full else 4, "", 5 if full else 2)


def text(size: str) -> Design:
    """Figures 4 and 7: language models around a real diagonal layer, at three learning rates."""
    full = size == "full"
    steps = 600 if full else 40
    names = ("direct", "relu", "exp", "softplus", "tanh", "best")

    def section(name: str) -> dict[str, Any]:
        layer = {"name": "hyena", "inner": {"name": "stable_ssm", "d_state": 32}}
        map_ = {"name": name, "time": "discrete"}
        return {"layer": layer, "n_layers": 2, "d_model": 32, "mlp_expansion": 2, "reparameterization": map_}

    def base(steps: int) -> dict[str, Any]:
        task = {"name": "char_lm", "file": TEXT, "length": 128}
        optimizer = {"weight_decay": 0.25, "warmup_steps": steps // 20, "schedule": "cosine"}
        return {"task": task, "optimizer": optimizer, "train": train(steps, 8)}

    trained = ("eval_loss", UNIGRAM)
    kept = [name for name in names if name != "tanh"] if full else ["direct", "exp", "best"]
    parts = (
        Part(
            "main",
            base(steps),
            {name: section(name) for name in kept},
            (0.002, 0.005, 0.01) if full else (0.01,),
            "eval_loss",
            trained,
        ),
        Part("start", base(1), {name: section(name) for name in names}, (0.005,), "largest_ratio", seeds=None if full else 1),
    )
    departures: tuple[str, ...] = (
        "Characters of WikiText-2 instead of words of WikiText-103; 2 layers of 32 features instead of 12 of 768.",
        f"Sequences of 128 characters, batches of 8, {steps:,} steps with cosine instead of 115,200.",
        "All parameters have the same learning rate; the paper's recurrent weights have 0.004 where the others have 0.005.",
    )
    departures += () if full else (scaled(600, steps, 3) + " The ratios at the first step have one seed.",)
    title = "Figures 4 and 7, language models"
    chance = f"a loss below {UNIGRAM} nats per character, which the frequencies of the characters alone do not reach"
    return Design("fig4", None, size, title, parts, departures, 12 if full else 3, chance, 35 if full else 2)
