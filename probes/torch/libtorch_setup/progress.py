"""What people see during the long parts: a line that is rewritten on a terminal, a line now and then elsewhere."""

import sys
import time

TERMINAL_SECONDS = 0.2
LOG_SECONDS = 15.0
LOG_STEP = 0.25
MEGABYTE = 1e6


class Progress:
    """Counts bytes towards a total; `total` None means that it is not known."""

    def __init__(self, label, total=None, stream=None, clock=time.monotonic):
        self._label, self._total, self._clock = label, total, clock
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._done = self._shown_done = 0
        self._began = self._shown_at = clock()
        self._shown_share = 0.0

    def add(self, count):
        """Counts `count` bytes more."""
        self.at(self._done + count)

    def at(self, done):
        """Sets the bytes done, and shows them when it is time to."""
        self._done = done
        if self._due():
            self._show(end="")

    def finish(self):
        """Ends the line; in a log, says what it took unless that was said."""
        if self._terminal or self._done != self._shown_done or self._done == 0:
            self._show(end="\n")

    def _share(self):
        return min(1.0, self._done / self._total) if self._total else 0.0

    def _due(self):
        waited = self._clock() - self._shown_at
        if self._terminal:
            return waited >= TERMINAL_SECONDS
        return waited >= LOG_SECONDS or self._share() - self._shown_share >= LOG_STEP

    def _show(self, end):
        self._shown_at, self._shown_share, self._shown_done = self._clock(), self._share(), self._done
        seconds = max(self._shown_at - self._began, 1e-3)
        share = f"{100 * self._share():3.0f} %  " if self._total else ""
        total = f" of {self._total / MEGABYTE:.0f}" if self._total else ""
        text = f"  {self._label}: {share}{self._done / MEGABYTE:.0f}{total} MB, {seconds:.0f} s"
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}{end}")
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
