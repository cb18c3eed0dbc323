"""The step at which a finding first stood: the recording is cut after a step and judged, as somebody who watched would have seen it.

The onset that a finding names is no measure of that: a rule that needs a hundred steps names the first of them, afterwards.
"""

from harness.programs import RECORDING

# Steps behind the onset that are looked at one by one; further on the distance doubles, and the first is then looked for between two.
CLOSELY = 24


def first_stood(recording, onset, stands):
    """The first step from `onset` on after which `stands(bytes)` holds, or None if it never does; `stands` is asked of few cuts."""
    taken = [index for index, _, _ in recording.steps if index >= onset]
    missing = -1
    for place in _places(len(taken)):
        if stands(recording.up_to(taken[place])):
            return taken[_between(recording, taken, missing, place, stands)]
        missing = place
    return None


def _places(count):
    place, stride = 0, 1
    while place < count - 1:
        yield place
        place, stride = place + stride, stride if place < CLOSELY else stride * 2
    if count:
        yield count - 1


def _between(recording, taken, missing, standing, stands):
    """The first that stands above `missing`, if it stands from then on: found by halving."""
    while standing - missing > 1:
        middle = (missing + standing) // 2
        if stands(recording.up_to(taken[middle])):
            standing = middle
        else:
            missing = middle
    return standing


def asked(programs, folder, wanted):
    """A `stands` that has the doctor judge the cut and asks whether any of its findings is `wanted`."""
    folder.mkdir(parents=True, exist_ok=True)

    def stands(data):
        (folder / RECORDING).write_bytes(data)
        _, report = programs.check(folder)
        return any(wanted(finding) for finding in report["findings"])

    return stands
