"""What is checked, as a table of named functions; each raises `Unmet` or returns what it measured."""

from itertools import product

from harness.runs import LAYERS, MIDDLE, MODELS, OPTIMIZERS, PRECISIONS, PURE, SEEDS

from .accuracy import accuracy
from .faults import IN_LAYERS, IN_RUN, in_layer, in_run
from .healthy import healthy, singles, variant
from .identity import EXTRAS, identity
from .killed import killed
from .masters import as_good_as_fp32, lost_without

KILLS = 20
# Where the same underflow, overflow or NaN could look otherwise.
OTHER_PRECISIONS = {
    "underflow": ("fp16-masters",),
    "overflow": ("fp16-masters",),
    "nan": ("fp32", "bf16", "fp16-masters", "bf16-masters"),
}
# What real loops do besides, where it is no finding.
VARIANTS = {
    "accumulate": ("--accumulate", 4),
    "clip": ("--clip", "0.1"),
    "warmup": ("--schedule", "warmup-cosine"),
    "evaluate": ("--eval-every", 10),
    "budget": ("--budget", "2%"),
    "interval": ("--growth-interval", 100),
}
VARIANT_STEPS = {"mlp": 400, "conv": 200, "transformer": 100}


def all_items():
    """Every item as (group, name, function of the programs), in the order in which they are run."""
    yield from _healthy()
    yield from _faults()
    yield from _masters()
    yield from _identity()
    for number in range(KILLS):
        yield "killed", f"killed-{number}", killed(number)
    for model, seed in product(("mlp", "conv"), SEEDS):
        for optimizer in OPTIMIZERS[model]:
            yield "accuracy", f"accuracy-{model}-{optimizer}-{seed}", accuracy(model, optimizer, seed)


def _healthy():
    for model, precision, seed in product(MODELS, PRECISIONS, SEEDS):
        for optimizer in OPTIMIZERS[model]:
            name = f"healthy-{model}-{precision}-{optimizer}-{seed}"
            yield "healthy", name, healthy(name, model, precision, optimizer, seed)
    for model, precision, seed in product(MODELS, ("fp16", "fp16-masters"), SEEDS):
        name = f"singles-{model}-{precision}-{seed}"
        yield "singles", name, singles(name, model, precision, seed)
    for model, precision, (what, arguments) in product(MODELS, ("fp16", "fp16-masters"), VARIANTS.items()):
        name = f"variant-{model}-{precision}-{what}"
        yield "variant", name, variant(name, model, precision, arguments, VARIANT_STEPS[model])


def _faults():
    for model, seed in product(MODELS, SEEDS):
        for fault, layer in product(IN_LAYERS, LAYERS[model]):
            name = f"{fault}-{model}-{layer}-{seed}"
            yield fault, name, in_layer(name, fault, model, layer, seed)
        for fault, precisions in OTHER_PRECISIONS.items():
            for precision in precisions:
                name = f"{fault}-{model}-{precision}-{seed}"
                yield fault, name, in_layer(name, fault, model, MIDDLE[model], seed, precision)
        for fault in IN_RUN:
            name = f"{fault.name.replace('=', '-')}-{model}-{fault.precision}-run-{seed}"
            yield fault.name.split("=")[0], name, in_run(name, fault, model, seed)


def _masters():
    for model, precision in product(MODELS, ("fp16", "fp16-masters", "bf16-masters")):
        yield "as-good", f"as-good-as-fp32-{model}-{precision}", as_good_as_fp32(model, precision)
    for model, seed in product(MODELS, SEEDS):
        for pure, masters in zip(PURE, ("fp16-masters", "bf16-masters")):
            name = f"lost-without-{model}-{pure}-{seed}"
            yield "lost-without", name, lost_without(name, model, pure, masters, seed)


def _identity():
    for model, precision in product(MODELS, PRECISIONS + PURE):
        for optimizer in OPTIMIZERS[model]:
            name = f"identity-{model}-{precision}-{optimizer}"
            yield "identity", name, identity(name, model, precision, optimizer)
    for model, precision, (what, extra) in product(MODELS, ("fp16", "fp16-masters", "bf16-masters"), EXTRAS.items()):
        name = f"identity-{model}-{precision}-{what}"
        yield "identity", name, identity(name, model, precision, "adam", extra)
    for model, precision in product(MODELS, PRECISIONS + PURE):
        name = f"identity-{model}-{precision}-shadow"
        optimizer = OPTIMIZERS[model][0]
        yield "identity", name, identity(name, model, precision, optimizer, looks=("--shadow-every", 3))
