"""What people see: the kinds of failure that are reported in public, each with the rows and the healthy runs that show it."""

from .tables import table

# What the person sees, and the names of its rows; of healthy runs, the part of the name that they share.
MET = (
    ("the loss scale is at its minimum and training ends: a layer's output is infinite at any scale", ("overflow-from-the-start", "overflow", "floor-high")),
    ("the loss scale is 8e-202, then 0: the loss is the logarithm of zero", ("log-zero", "scale-below-one")),
    ("the loss scale shrinks over days, and the quality fades: some batches have a NaN gradient", ("bad-batches", "bad-batches-often", "bad-batches-unscaled")),
    ("is this normal? Steps are skipped at the beginning, until the scale fits", ("variant: calibration",)),
    ("a step is skipped now and then, when the scale has grown: the scaler finds its ceiling", ("variant: probing",)),
    ("the loss scale goes up and down for ever, every tenth step is skipped", ("short-interval", "growth-interval-10")),
    ("it does not learn at a scale of 65536 and does at 1024: the loss is scaled in FP16", ("half-loss",)),
    ("under AMP the loss falls a thousand times slower: gradients are clipped while they carry the scale", ("clip-early", "scaled-step")),
    ("the scheduler is stepped before the optimizer: the first steps were skipped", ("scheduler-ahead",)),
    ("the scaler asserts that no inf checks were recorded: no parameter of the optimizer has a gradient", ("unreached",)),
    ("unscale was already called since the last update", ("unscale-twice", "no-update", "update-early", "own-step")),
    ("attempting to unscale FP16 gradients: the model is in FP16 and has no FP32 copies", ("half-parameters",)),
    ("NaN in attention: a mask of -1e9 in FP16 leaves nothing of a row", ("masked-row",)),
    ("NaN in a pre-trained transformer, after products that came near 65504 for some steps", ("near-overflow", "overflow", "huge-weights")),
    ("it trains, and the head gets nothing: a layer norm by hand in FP16", ("half-norm", "small-activations")),
    ("evaluation is NaN and training is fine: a BatchNorm keeps what one batch left in it", ("overflow-once",)),
    ("the loss is infinite, then zero: a sum in FP16", ("half-sum", "saturated-log")),
    ("forward peaks at a few hundred, and the gradients are NaN", ("backward-overflow", "inflated-gradient")),
    ("the loss flattens early, and nothing else: gradients vanish in FP16", ("no-scaler", "underflow", "underflow-run", "scale-low", "scale-low-2^-12", "scale-low-2^-16-shadowed")),
    ("the first layers learn nothing: the gradient fades on its way to the input", ("fading", "underflow")),
    ("NaN weights after the first step of Adam: its eps is zero in FP16", ("vanishing-eps",)),
    ("nothing trains, and nothing is NaN: updates of FP16 weights are rounded away", ("dead-updates", "low-rate", "lost-decay", "copied-step")),
    ("the FP16 run ends worse than the FP32 one: an operator was cast to FP16 by hand", ("half-softmax", "half-positions", "half-norm", "rounded-evaluation")),
    ("a jump in the loss: was it the loss scale, the learning rate or the data?", ("scale-raised", "lr-raised", "wrong-labels", "scaler-lost", "lr-high")),
    ("anomaly mode stops a run that would have recovered: overflows while the scale is found", ("variant: calibration",)),
)


def seen(cases, healthy):
    """A row a kind of failure: what was said of the runs that show it, the code named first."""
    return table(("what people see", "rows", "what is said"), [(what, ", ".join(f"`{row}`" for row in rows), _said(rows, cases, healthy)) for what, rows in MET])


def _said(rows, cases, healthy):
    codes = [result["found"] for row in rows for result in cases.values() if result["case"] == row]
    alarms = [result["findings"] for row in rows for name, result in healthy.items() if is_of(row, name)]
    counted = [f"{code} ({codes.count(code)})" for code in dict.fromkeys(codes)]
    if alarms:
        counted.append(f"nothing, in {sum(not found for found in alarms)} of {len(alarms)} runs")
    return ", ".join(counted) or "not run"


def is_of(row, name):
    """Whether a healthy run of this name is one of the row's: `variant: calibration` has those of that group and kind."""
    group, _, kind = row.partition(": ")
    return bool(kind) and name.startswith(f"{group}-") and f"-{kind}-" in name
