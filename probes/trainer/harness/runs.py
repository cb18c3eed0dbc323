"""What all runs share: the models, the settings of a run, and how a report is read."""

MODELS = ("mlp", "conv", "transformer")
PRECISIONS = ("fp32", "bf16", "fp16", "fp16-masters", "bf16-masters")
PURE = ("fp16-pure", "bf16-pure")
SEEDS = (0, 1, 2)
# The transformer learns with Adam; SGD needs a hundred times the steps.
OPTIMIZERS = {"mlp": ("sgd", "adam", "adamw"), "conv": ("sgd", "adam", "adamw"), "transformer": ("adam",)}
# Layers that a fault is planted in; those of the transformer that give FP16 are its products.
LAYERS = {
    "mlp": ("fc1", "fc2", "fc3"),
    "conv": ("conv1", "bn1", "conv2", "bn2", "fc1", "fc2"),
    "transformer": ("block.0.attn.qkv", "block.0.mlp.down", "block.1.attn.out", "block.1.mlp.up"),
}
MIDDLE = {"mlp": "fc2", "conv": "conv2", "transformer": "block.0.mlp.up"}
# The scale at which a model's gradients begin to overflow: with it the search for it, which is no fault, is over.
CEILING = {"mlp": 2**19, "conv": 2**19, "transformer": 2**20}
# How long each model trains, and below which loss it has converged. The digits are known by heart then; the characters are as well
# foretold as this transformer ever does in so few steps, and its learning rate has fallen to zero.
CONVERGENCE = {
    "mlp": (800, 0.05, ()),
    "conv": (600, 0.05, ()),
    "transformer": (800, 2.2, ("--schedule", "warmup-cosine")),
}


def settings(model, precision, optimizer, seed, steps):
    """The arguments of a run."""
    return (
        *("--model", model, "--precision", precision, "--optimizer", optimizer),
        *("--seed", str(seed), "--steps", str(steps)),
    )


def brief(finding):
    """A finding in a few words."""
    return f"{finding['code']} {finding['layer'] or 'run'} @{finding['onset_step']} ({finding['severity']})"


def everything(findings):
    """The findings, each before those that follow from it."""
    return [found for root in findings for found in (root, *root["consequences"])]


def listed(findings):
    """Findings in a line, what follows from one in brackets behind it."""

    def one(finding):
        follows = ", ".join(brief(consequence) for consequence in finding["consequences"])
        return brief(finding) + (f" [{follows}]" if follows else "")

    return "; ".join(one(finding) for finding in findings) or "none"


def doubts(report):
    """What the report could not tell, in a line."""
    return "; ".join(f"{doubt['code']} {doubt['reason']}" for doubt in report["doubts"]) or "none"
