"""The settings that remedies name, as arguments of the trainer."""

# The trainer's flags for the settings that remedies name.
FLAGS = {
    "init_scale": "--init-scale",
    "static_scale": "--static-scale",
    "min_scale": "--min-scale",
    "max_scale": "--max-scale",
    "growth_interval": "--growth-interval",
    "lr": "--lr",
    "clip": "--clip",
    "eps": "--eps",
    "precision": "--precision",
    "fp32_layers": "--fp32-layers",
    "optimizer": "--optimizer",
}
# A dynamic scaler is what the trainer has where no static scale is set.
DYNAMIC = ("scaler", "dynamic")
# What has no meaning in FP32.
OF_THE_SCALE = ("--init-scale", "--static-scale", "--min-scale", "--max-scale", "--growth-interval")
# What has none without the doctor.
OF_THE_DOCTOR = ("--shadow-every",)


def beyond(settings, flags):
    """The settings among these that the trainer has not: what needs a change of the code cannot be tried."""
    known = {name for name, flag in FLAGS.items() if flag in flags}
    return sorted(name for name, value in settings.items() if name not in known and (name, value) != DYNAMIC)


def applied(arguments, settings):
    """The arguments with the settings in place of those that they set otherwise."""
    changed = tuple(arguments)
    if settings.get("scaler") == "dynamic" or "init_scale" in settings:
        changed = without(changed, "--static-scale")
    for name, value in settings.items():
        if name in FLAGS:
            changed = (*without(changed, FLAGS[name]), FLAGS[name], value)
    return changed


def without(arguments, *flags):
    """The arguments without these flags and their values."""
    arguments = tuple(arguments)
    for flag in flags:
        while flag in arguments:
            at = arguments.index(flag)
            arguments = arguments[:at] + arguments[at + 2 :]
    return arguments
