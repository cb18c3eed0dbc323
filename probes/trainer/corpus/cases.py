"""The table of faults. A new case is one row.

A row says what a person sees, how it is planted and what the doctor has to say: the code, and the layer where a layer is to blame.
`trials` makes runs of it. A row whose fault the trainer does not know is left out, and the page says so.
"""

from typing import NamedTuple

from harness.runs import CEILING, LAYERS, MODELS

# A fault that comes in the middle waits until the model has learned something.
MIDDLE = {"mlp": 80, "conv": 60, "transformer": 30}
START = {model: 0 for model in MODELS}
STEPS = {"mlp": 160, "conv": 120, "transformer": 70}
# A fault of one step in the middle is over before the last 50 steps, whose loss tells of the run.
ALONE = {"mlp": 160, "conv": 140, "transformer": 110}
# Time for gradients to grow by eight octaves and more.
GROWN = {"mlp": 160, "conv": 150}
# A dozen skips, of which an interval of ten brings one every eleven steps.
MANY_SKIPS = {"mlp": 280, "conv": 260, "transformer": 200}
# Bad batches of 5 %: as many as tell them from bad luck.
LONG = {"mlp": 800, "conv": 600, "transformer": 600}
# Steps within which a fault that is visible at once must be found.
AT_ONCE = 20

# The transformer learns with Adam; SGD needs a hundred times the steps.
ANY_OPTIMIZER = {"mlp": ("adam", "sgd", "adamw"), "conv": ("sgd", "adamw", "adam"), "transformer": ("adam", "adamw")}
ADAM = {model: ("adam",) for model in MODELS}
# What does not ask how large gradients are: SGD is ruined by one that is 2^30 times too large, in FP32 too.
ADAMS = {model: ("adam", "adamw") for model in MODELS}
ADAMW = {model: ("adamw",) for model in MODELS}
SGD = {model: ("sgd",) for model in MODELS}

# What stands where a layer of a finding is judged: the planted one, none (the run as a whole), or whichever.
PLANTED, RUN, ANY = "planted", "run", "any"
# How the printed settings meet the fault: they take the place of the setting that is the fault; else they are set beside a fault that stays.
REPLACES = "replaces"
# The fault is one batch, and the settings leave nothing of it: FP32's run leaves it out.
LOST = "lost"


class Case(NamedTuple):
    """A fault: what is seen of it, how it is planted, what must be said."""

    name: str
    sees: str
    codes: tuple
    # The trainer's fault, without step and layer; empty where `arguments` are the fault.
    fault: str = ""
    arguments: tuple = ()
    # Arguments that hold with and without the fault, by model.
    around: dict = {}
    models: tuple = MODELS
    precisions: tuple = ("fp16",)
    optimizers: dict = ANY_OPTIMIZER
    # Codes that may come first: faults that the same setting brings, or causes under which the right one may stand.
    beside: tuple = ()
    # The layers it is planted in, one after the other, by model; none for a fault of the run.
    layers: dict = {}
    layer: str = RUN
    at: dict = START
    steps: dict = STEPS
    # Steps from the onset within which it must be found; None: within the run.
    within: int = None
    cure: str = ""
    # How often a step is scanned.
    every: int = 1


def _each(*arguments):
    """The same arguments for every model."""
    return {model: arguments for model in MODELS}


def _ceiling(interval):
    """The scale is at its ceiling from the start: the search for it, which is no fault, is over."""
    return {model: ("--init-scale", CEILING[model], "--growth-interval", interval) for model in MODELS}


AT_CEILING = _ceiling(2000)
# Every fifth step is compared with FP32: three comparisons lie within ten steps.
SHADOWED = ("--shadow-every", 5)
# A learning rate at which no update of a model in FP16 is as large as 2^-14.
BELOW_NORMAL = {"mlp": ("--lr", "0.0001"), "conv": ("--lr", "0.00002"), "transformer": ("--lr", "0.0001")}
# The loss is so small that gradients of the usual size begin to overflow above 2^44. The scale starts above where others overflow, and where these
# do not fade, and grows at every second step: sixteen times and no more, so that it never comes to the end that it has all the same.
NEXT_TO_NOTHING = 2.0**-30
FAR_ABOVE = {model: ("--init-scale", scale, "--growth-interval", 2) for model, scale in (("mlp", 2**24), ("conv", 2**24), ("transformer", 2**28))}

# Layers whose output is of the usual size, not normalised: what a fault multiplies goes where it is meant to go.
LINEAR = {"mlp": ("fc1", "fc2"), "conv": ("conv2", "fc1"), "transformer": ("block.0.attn.qkv", "block.0.mlp.up")}

CASES = (
    Case("underflow", "the gradient of one layer is too small for FP16; the layers before it learn nothing", ("AMP201",),
         "underflow", layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("overflow", "one layer's output is beyond 65504: the loss is infinite, every step is skipped", ("AMP102",),
         "overflow", layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("overflow-from-the-start", "the scale falls from the first step on until it is at its minimum", ("AMP102",), "overflow",
         layers={"mlp": ("fc3",), "conv": ("fc2",), "transformer": ("block.1.mlp.down",)}, layer=PLANTED, within=AT_ONCE),
    Case("inflated-gradient", "forward peaks at a few hundred, the gradients of one layer are infinite", ("AMP202",),
         "inflated-gradient", layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters"), optimizers=ADAMS),
    Case("nan", "one operator makes a NaN; the loss is NaN from then on", ("AMP501",), "nan", layers=LAYERS, layer=PLANTED,
         at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp32", "bf16", "fp16-masters", "bf16-masters")),
    Case("underflow-run", "the loss scale falls to next to nothing and stays", ("AMP307", "AMP201"), "underflow",
         arguments=(), at=MIDDLE, within=AT_ONCE, layers={model: ("",) for model in MODELS}, cure=REPLACES),
    Case("scale-low", "a static loss scale at which all gradients vanish", ("AMP307",), "scale-low", within=AT_ONCE,
         precisions=("fp16", "fp16-masters"), cure=REPLACES),
    Case("scale-low-2^-12", "a static loss scale that is too low, and not by far", ("AMP307",),
         arguments=("--static-scale", 2.0**-12), precisions=("fp16", "fp16-masters"), cure=REPLACES),
    Case("scale-high", "a static loss scale at which gradients overflow: no step is applied", ("AMP307",), "scale-high",
         within=AT_ONCE, precisions=("fp16", "fp16-masters"), cure=REPLACES),
    Case("no-scaler", "FP16 without a loss scale: the loss goes flat early", ("AMP308",), "no-scaler", within=AT_ONCE,
         models=("mlp", "conv")),
    Case("short-interval", "the scale goes up and down for ever, every eleventh step is skipped", ("AMP301",), "short-interval",
         around=AT_CEILING, at=MIDDLE, steps=MANY_SKIPS, precisions=("fp16", "fp16-masters"), cure=REPLACES),
    Case("growth-interval-10", "a growth interval of 10 from the start", ("AMP301",), arguments=("--growth-interval", 10),
         around={model: ("--init-scale", CEILING[model]) for model in MODELS}, steps=MANY_SKIPS,
         precisions=("fp16", "fp16-masters"), cure=REPLACES),
    Case("bad-batches", "a batch in twenty gives a NaN gradient: the scale falls for days", ("AMP302",), "bad-batches=0.05",
         around=_each("--growth-interval", 100), steps=LONG, precisions=("fp16", "fp16-masters"),
         beside=("AMP501",)),
    Case("bad-batches-often", "every second batch gives a NaN gradient: the scale falls at once", ("AMP302", "AMP501"),
         "bad-batches=0.5", at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters"), layer=ANY),
    Case("bad-batches-unscaled", "a batch gives a NaN gradient, and nobody skips its step", ("AMP501",), "bad-batches=0.5",
         at=MIDDLE, within=AT_ONCE, precisions=("bf16", "bf16-masters"), layer=ANY),
    Case("lr-high", "the learning rate is raised a hundredfold: the weights are thrown about", ("AMP403",), "lr-high", at=MIDDLE,
         within=AT_ONCE, precisions=("fp16", "fp32", "bf16-masters"), optimizers=ADAM, cure=REPLACES),
    Case("dead-updates", "a model in 16 bits without FP32 copies: nothing is NaN, and nothing trains", ("AMP401",), "dead-updates",
         precisions=("fp16-pure", "bf16-pure"), optimizers=SGD),
    Case("low-rate", "a model in 16 bits without FP32 copies, at a low learning rate: it ends worse than FP32", ("AMP401",),
         around=_each("--lr", "0.0001"), precisions=("fp16-pure", "bf16-pure"), optimizers=SGD),
    Case("lost-decay", "the weight decay of AdamW is rounded away in BF16", ("AMP404",), "lost-decay", precisions=("bf16-pure",),
         optimizers=ADAMW, beside=("AMP401", "AMP411"), cure=REPLACES),
    Case("lost-average", "the average of the weights, which is what is evaluated and saved, is still the untrained model", ("AMP409",),
         "lost-average", precisions=("fp16", "fp32", "bf16", "fp16-masters")),
    Case("vanishing-eps", "Adam on FP16 weights: they are NaN after the first step", ("AMP407",), "vanishing-eps",
         precisions=("fp16-pure",), optimizers=ADAM, within=AT_ONCE, cure=REPLACES),
    Case("model-changed", "something sets the weights of the model; the next step of the FP32 copies undoes it", ("AMP405",),
         "model-changed", at=MIDDLE, within=AT_ONCE, precisions=("fp16-masters", "bf16-masters"), layer=ANY),
    Case("masters-unused", "the optimizer holds the model's parameters, their gradients were moved to the copies", ("AMP405",),
         "masters-unused", at=MIDDLE, within=AT_ONCE, precisions=("bf16-masters",), layer=ANY),
    Case("masters-bypassed", "the optimizer steps the model, and writing the copies back undoes it", ("AMP405",),
         "masters-bypassed", at=MIDDLE, within=AT_ONCE, precisions=("bf16-masters",), layer=ANY),
    Case("masters-unwritten", "the copies are stepped and never written back", ("AMP405",), "masters-unwritten", at=MIDDLE,
         within=AT_ONCE, precisions=("fp16-masters", "bf16-masters"), layer=ANY),
    Case("near-overflow", "an intermediate product stands within three bits of 65504", ("AMP101",), "near-overflow",
         layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("small-activations", "what a layer hands on is so small that FP16 keeps a few bits of it", ("AMP104", "AMP105"), "small-activations",
         layers=LINEAR, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("half-norm", "a layer norm by hand in FP16: it trains, and what is behind it gets nothing", ("AMP105",), "half-norm",
         beside=("AMP101",),
         layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("half-sum", "a sum in FP16 becomes infinite, and what is divided by it zero", ("AMP106",), "half-sum",
         layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("saturated-log", "a cross-entropy by hand in FP16: the loss is infinite once the net is sure", ("AMP106",), "saturated-log",
         layers=LINEAR, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("half-softmax", "a softmax cast to FP16 by hand: the run ends worse than FP32", ("AMP106",), "half-softmax",
         layers=LINEAR, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("half-positions", "positions beyond 5000 in FP16: four of them are one", ("AMP107",), "half-positions",
         layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("masked-row", "a mask of -1e9 in FP16 leaves nothing of a row: NaN in attention", ("AMP504",), "masked-row",
         layers=LAYERS, layer=PLANTED, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("backward-overflow", "forward peaks at some units, and gradients are NaN: a factor that the next operator takes back", ("AMP202",),
         "backward-overflow", layers=LINEAR, layer=PLANTED, at=MIDDLE, within=AT_ONCE, models=("mlp", "conv"),
         precisions=("fp16", "fp16-masters")),
    Case("log-zero", "the loss of every batch is the logarithm of zero: the scale falls to nothing", ("AMP501",), "log-zero",
         at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp32", "bf16"), layer=ANY),
    Case("overflow-once", "training looks well and evaluation is NaN: one batch overflowed, and its step was skipped", ("AMP502",), "overflow-once",
         models=("conv",), layers={"conv": ("conv1", "conv2")}, layer=ANY, at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters"),
         beside=("AMP102",)),
    Case("loss-spike", "after one batch with an enormous loss the weights stand still for ever", ("AMP503",), "loss-spike",
         precisions=("fp32",), optimizers=ADAM, layer=ANY, at=MIDDLE, steps=ALONE, within=AT_ONCE, beside=("AMP701",), cure=LOST),
    Case("unscale-twice", "the loop ends with an error: unscale was already called", ("AMP601",), "unscale-twice", at=MIDDLE,
         within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("clip-early", "gradients are clipped while they carry the scale: the loss falls a thousand times slower", ("AMP602",),
         "clip-early", models=("mlp", "conv"), at=MIDDLE, within=AT_ONCE, optimizers=SGD),
    Case("no-update", "the loop ends with an error at its second step: the scaler is never updated", ("AMP603",), "no-update",
         at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("update-early", "the scaler is updated between unscale and step, which unscales once more", ("AMP604",), "update-early",
         at=MIDDLE, within=AT_ONCE),
    Case("own-step", "the optimizer is stepped past the scaler", ("AMP604",), "own-step", at=MIDDLE, within=AT_ONCE),
    Case("scaled-step", "the optimizer is stepped with gradients that carry the scale", ("AMP605",), "scaled-step", at=MIDDLE,
         within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("no-zero-grad", "gradients are never cleared", ("AMP606",), "no-zero-grad", at=MIDDLE, within=AT_ONCE,
         precisions=("fp16", "fp32", "bf16", "fp16-masters")),
    Case("no-zero-grad-overflow", "every step is skipped, however low the scale: gradients are never cleared, and an infinity of the first step stays",
         ("AMP606",), "no-zero-grad", arguments=("--init-scale", 2**28), within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("moving-scale", "the loss scale changes between two micro-batches", ("AMP607",), "moving-scale", at=MIDDLE,
         within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("split-update", "the scaler is updated after each of two optimizers", ("AMP608",), "split-update", models=("mlp", "conv"),
         at=MIDDLE, within=AT_ONCE),
    Case("half-loss", "does not learn at a scale of 65536: the loss is scaled in FP16", ("AMP609",), "half-loss", within=AT_ONCE),
    Case("scaled-loss", "the loss that is logged is the scaled one", ("AMP610",), "scaled-loss", at=MIDDLE, within=AT_ONCE),
    Case("unreached", "the loop ends with an error: no gradient for an optimizer", ("AMP611",), "unreached", at=MIDDLE,
         within=AT_ONCE),
    Case("half-parameters", "the loop ends with an error: FP16 gradients cannot be unscaled", ("AMP411",), "half-parameters",
         precisions=("fp16-pure",), optimizers=SGD, within=AT_ONCE, cure=REPLACES),
    Case("scheduler-ahead", "the schedule goes on while three steps are skipped", ("AMP612",), "scheduler-ahead", within=AT_ONCE,
         beside=("AMP501",)),
    Case("lr-raised", "a jump in the loss: the learning rate was raised thirtyfold", ("AMP701", "AMP403"), "lr-high=30", models=("mlp", "conv"),
         at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp32"), optimizers=SGD, cure=REPLACES),
    Case("wrong-labels", "a jump in the loss, and the loss scale is suspected: it is the data", ("AMP701",), "wrong-labels", models=("mlp", "conv"),
         at=MIDDLE, within=AT_ONCE, precisions=("fp16", "bf16")),
    Case("lr-zero", "the loss is flat: the schedule never leaves zero", ("AMP406", "AMP702"), "lr-zero", steps={model: 100 for model in MODELS},
         precisions=("fp16", "fp32")),
    Case("rounded-evaluation", "evaluation is worse than in FP32, training is fine", ("AMP704",), "rounded-evaluation", models=("mlp", "conv"),
         around=_each("--eval-every", 5), at=MIDDLE, within=AT_ONCE, precisions=("fp16", "bf16")),
    Case("fading", "the first layers learn nothing: the gradient fades from layer to layer", ("AMP203", "AMP201"), "fading",
         models=("conv",), at=MIDDLE, within=AT_ONCE, layer=ANY),
    Case("growing-gradients", "a static scale that was well, until gradients grow", ("AMP204",), "growing-gradients", models=("mlp", "conv"),
         at=MIDDLE, steps=GROWN, layer=ANY, optimizers=SGD, beside=("AMP202", "AMP307")),
    Case("needless-scaler", "a loss scaler over BF16", ("AMP309",), "needless-scaler", within=AT_ONCE, precisions=("bf16",)),
    Case("scaler-lost", "after a checkpoint the run skips steps again: the scaler was not restored", ("AMP310",), "scaler-lost",
         models=("mlp", "conv"), at=MIDDLE, within=AT_ONCE),
    Case("huge-weights", "a layer before a normalisation has weights that FP16 cannot hold", ("AMP410",), "huge-weights", models=("conv",),
         layers={"conv": ("conv1", "conv2")}, layer=PLANTED, at=MIDDLE, within=AT_ONCE, optimizers=SGD, beside=("AMP403",)),
    Case("weighted-loss", "training is less steady than in FP32: between report and backward the loss is multiplied by four", ("AMP205",),
         "weighted-loss", around=_each(*SHADOWED, "--init-scale", 4096), models=("mlp", "transformer"), at=MIDDLE, within=AT_ONCE, precisions=("fp16", "fp16-masters"),
         optimizers=ADAMS),
    Case("scale-low-2^-16-shadowed", "a static loss scale at which gradients point elsewhere than FP32's", ("AMP205",),
         arguments=("--static-scale", 2.0**-16), around=_each(*SHADOWED), within=AT_ONCE, precisions=("fp16", "fp16-masters"), beside=("AMP307",)),
    Case("floor-high", "every step is skipped, and the loss scale stays where it is: a floor holds it", ("AMP303",),
         arguments=("--init-scale", 2**26, "--min-scale", 2**26), layer=ANY, within=AT_ONCE, precisions=("fp16", "fp16-masters"), cure=REPLACES),
    Case("scale-below-one", "the loss scale is 1e-5, then 0", ("AMP303",), "log-zero", at=MIDDLE, layer=ANY, beside=("AMP501",)),
    Case("runaway", "the loss scale grows and grows: the loss is next to nothing", ("AMP304",), f"weighted-loss={NEXT_TO_NOTHING}",
         around=FAR_ABOVE, steps={model: 34 for model in MODELS}, beside=("AMP406",)),
    Case("scale-raised", "the loss scale is suddenly 4096 times higher, and steps are skipped", ("AMP306",), "scale-raised", at=MIDDLE,
         within=AT_ONCE, precisions=("fp16", "fp16-masters")),
    Case("copied-step", "FP16 parameters are stepped by hand: updates are tiny, and how much of them arrives is not known", ("AMP402",),
         "copied-step", around=BELOW_NORMAL, steps={**STEPS, "mlp": 200}, precisions=("fp16-pure",), optimizers=SGD),
    Case("lr-tiny", "the loss is flat: the learning rate is next to nothing", ("AMP406",), arguments=("--lr", "1e-9"),
         steps={model: 100 for model in MODELS}, precisions=("fp16", "fp32", "bf16-masters")),
    Case("unassigned-step", "the loss is flat: weights have gradients and never change", ("AMP408",), "unassigned-step",
         steps={model: 100 for model in MODELS}, precisions=("fp32", "fp16", "bf16")),
    Case("nan-unscanned", "the loss is NaN at a step that was not scanned", ("AMP703",), "nan", layer=ANY, at=MIDDLE, within=AT_ONCE,
         precisions=("fp16", "bf16", "fp32"), beside=("AMP501",), every=50),
)
