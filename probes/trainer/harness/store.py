"""What is finished: a file an item, good for as long as the programs are the same."""

import hashlib
import json
import os
from pathlib import Path


class Store:
    """Results in a folder, each with the fingerprint of the programs that it was reached with."""

    def __init__(self, folder, programs):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.fingerprint = _fingerprint(programs)

    def finished(self, name, key=""):
        """The result of an item that passed with these very programs and this key, or None."""
        try:
            result = json.loads(self._path(name).read_text())
        except (OSError, ValueError):
            return None
        same = (result.get("programs"), result.get("key", "")) == (self.fingerprint, key)
        return result if same and result.get("ok") is True else None

    def keep(self, name, result, key=""):
        """Writes the result aside and renames it: an interrupt leaves the old one or the new one."""
        text = json.dumps(dict(result, programs=self.fingerprint, key=key), indent=1)
        aside = self._path(name).with_suffix(".new")
        aside.write_text(text + "\n")
        os.replace(aside, self._path(name))

    def _path(self, name):
        return self.folder / f"{name}.json"


def _fingerprint(programs):
    digest = hashlib.sha256()
    for program in programs:
        digest.update(Path(program).read_bytes())
    return digest.hexdigest()
