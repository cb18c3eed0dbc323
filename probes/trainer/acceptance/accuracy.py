"""FP16 learns as well as FP32."""

from harness.programs import require
from harness.runs import settings

STEPS = 300
LEAST_ACCURACY = 0.95
LARGEST_DIFFERENCE = 0.01


def accuracy(model, optimizer, seed):
    """FP16 learns the digits as well as FP32."""

    def check(programs):
        reached = {}
        for precision in ("fp32", "fp16"):
            summary = programs.train(*settings(model, precision, optimizer, seed, STEPS), "--no-doctor")
            reached[precision] = summary["accuracy"]
        for precision, value in reached.items():
            require(value > LEAST_ACCURACY, f"{precision} reaches {100 * value:.2f} %")
        difference = abs(reached["fp32"] - reached["fp16"])
        require(difference < LARGEST_DIFFERENCE, f"{100 * difference:.2f} points apart: {reached}")
        return dict(reached, difference=difference)

    return check
