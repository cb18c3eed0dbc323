"""A recording as its frames, and cut after a step: what a reader had seen then.

docs/format.md tells the format. Lengths are trusted here: the recordings are whole, and the doctor checks the sums.
"""

import struct

HEAD, TAIL = 12, 4
STEP, STEP_INDEX, STEP_LOSS = 4, 1, 5


class Recording:
    """The bytes of a recording, with the end of every step's frame."""

    def __init__(self, path):
        self.data = path.read_bytes()
        # (index of the step, where its frame ends, its loss or None), in order.
        self.steps = list(_steps(self.data))

    def up_to(self, step):
        """What was written when this step had been taken: whole frames, no end of the run. Steps that were dropped are none of it."""
        ends = [end for index, end, _ in self.steps if index <= step]
        return self.data[: ends[-1]] if ends else b""

    def only(self, step):
        """The recording without the frames of all other steps."""
        kept = (self.data[start:end] for start, end, record in _frames(self.data) if _index(record) in (None, step))
        return b"".join(kept)

    def losses(self):
        """The losses of the steps that have one."""
        return [loss for _, _, loss in self.steps if loss is not None]


def _frames(data):
    """Where each whole frame starts and ends, and the record in it."""
    at = 0
    while at + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + HEAD + length + TAIL
        if end > len(data):
            return
        yield at, end, data[at + HEAD : at + HEAD + length]
        at = end


def _steps(data):
    for _, end, record in _frames(data):
        fields = _step(record)
        if fields is not None:
            yield fields.get(STEP_INDEX, 0), end, fields.get(STEP_LOSS)


def _step(record):
    """The numbers of a step; None for another record."""
    if not record or record[0] >> 3 != STEP:
        return None
    _, start = _varint(record, 1)
    return _scalars(record, start)


def _index(record):
    """The number of a step; None for another record."""
    fields = _step(record)
    return None if fields is None else fields.get(STEP_INDEX, 0)


def _scalars(message, at):
    """The numbers among a message's fields, by field number."""
    found = {}
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            found[key >> 3], at = _varint(message, at)
        elif kind == 1:
            found[key >> 3], at = struct.unpack_from("<d", message, at)[0], at + 8
        elif kind == 2:
            length, at = _varint(message, at)
            at += length
        else:
            raise ValueError(f"no field of this schema: kind {kind}")
    return found


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
