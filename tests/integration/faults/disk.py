"""A disk under test, a broker's or a warehouse's: what a power cut leaves of it, and calls that fail.

Owns the model of a power cut. What a process has not synced is lost, kept or garbage, each at random; a name
that was made, changed or removed in a folder that was not synced since is there or not, each for itself. It
knows what was synced because `disk_shim` runs inside the process. Knows nothing of logs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 512
Names = dict[str, tuple[int, bool]]
"""Names in a folder: name -> (inode, whether it is a folder)."""


@dataclass(slots=True)
class Certain:
    """State that is on the disk whatever happens."""

    sizes: dict[int, int] = field(default_factory=dict)
    folders: dict[int, Names] = field(default_factory=dict)


def shim_path(folder: Path) -> str:
    """A PYTHONPATH that has `disk_shim` run inside every process that gets it; `folder` is made."""
    folder.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("disk_shim.py"), folder / "sitecustomize.py")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


class Disk:
    """The disk below one folder, for every process that is started with `env`."""

    def __init__(self, folder: Path, root: Path, chance: random.Random) -> None:
        """`root` is what may be lost; `folder`, on the same file system, keeps the books."""
        self._kept, self._record, self._rules = folder / "kept", folder / "record", folder / "rules"
        self._root, self._chance = root, chance
        self._held: list[int] = []
        self.lost_bytes = self.lost_names = 0
        """Amount that the power cuts took: a test that lost nothing shows nothing."""
        self.env = {
            "PYTHONPATH": shim_path(folder / "shim"),
            "DISK_RECORD": str(self._record),
            "DISK_KEPT": str(self._kept),
            "DISK_RULES": str(self._rules),
            "DISK_ROOT": str(root.resolve()),
        }
        self._kept.mkdir()
        self.begin_anew()

    def fail(self, call: str, path: str, number: int) -> None:
        """From now on `call` (sync, read or send) on files with `path` in theirs fails with this errno."""
        draft = self._rules.with_suffix(".tmp")
        draft.write_text(json.dumps([{"call": call, "path": path, "errno": number}]))
        draft.rename(self._rules)

    def heal(self) -> None:
        """Nothing fails any more."""
        self._rules.unlink(missing_ok=True)

    def cut_power(self) -> None:
        """Replace everything below the root by what a power cut may have left; no process may use it."""
        certain, alive = self._certain(), self._alive()
        survived = self._root.with_name(f"{self._root.name}.survived")
        self._rebuild(self._root.stat().st_ino, survived, certain, alive)
        shutil.rmtree(self._root)
        survived.rename(self._root)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Take what is below the root now for certain, whoever put it there."""
        for fd in self._held:
            os.close(fd)
        shutil.rmtree(self._kept)
        self._kept.mkdir()
        self._held = []
        lines = []
        for path in [self._root, *self._root.rglob("*")] if self._root.is_dir() else []:
            inode = path.stat().st_ino
            if path.is_dir():
                names = {child.name: (child.stat().st_ino, child.is_dir()) for child in path.iterdir()}
                lines.append({"folder": inode, "names": names})
                self._held.append(os.open(path, os.O_RDONLY))  # so that no other folder gets its inode
            else:
                lines.append({"file": inode, "size": path.stat().st_size})
                os.link(path, self._kept / str(inode))
        self._record.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def _certain(self) -> Certain:
        certain = Certain()
        for text in self._record.read_text().splitlines():
            line = json.loads(text)
            if "file" in line:
                certain.sizes[line["file"]] = line["size"]
            else:
                names = {name: (inode, is_folder) for name, (inode, is_folder) in line["names"].items()}
                certain.folders[line["folder"]] = names
        return certain

    def _alive(self) -> dict[int, Path]:
        paths = [*self._kept.iterdir(), self._root, *self._root.rglob("*")]
        return {path.stat().st_ino: path for path in paths}

    def _rebuild(self, inode: int, target: Path, certain: Certain, alive: dict[int, Path]) -> None:
        target.mkdir()
        synced = certain.folders.get(inode, {})
        source = alive.get(inode)
        children = [] if source is None else list(source.iterdir())
        now: Names = {child.name: (child.stat().st_ino, child.is_dir()) for child in children}
        for name in sorted(synced.keys() | now.keys()):
            before, after = synced.get(name), now.get(name)
            entry = after if before == after else self._chance.choice([before, after])
            self.lost_names += entry != after
            if entry is None:
                continue
            if entry[1]:
                self._rebuild(entry[0], target / name, certain, alive)
            elif (file := alive.get(entry[0])) is not None:
                size = certain.sizes.get(entry[0], 0)
                (target / name).write_bytes(self._what_is_left(file.read_bytes(), size))
                shutil.copystat(file, target / name)

    def _what_is_left(self, data: bytes, synced: int) -> bytes:
        """The synced bytes and, of the others, some, none, or blocks of something else."""
        if len(data) <= synced:
            return data
        kept = self._chance.choice([synced, len(data), self._chance.randint(synced, len(data))])
        self.lost_bytes += len(data) - kept
        left = bytearray(data[:kept])
        for start in range(synced - synced % BLOCK, kept, BLOCK):
            if self._chance.random() < 0.15:
                begin, end = max(start, synced), min(start + BLOCK, kept)
                left[begin:end] = self._chance.choice(
                    [bytes(end - begin), self._chance.randbytes(end - begin)]
                )
                self.lost_bytes += end - begin
        # What was cut off again, or never got its size written down, may lie behind the end.
        return bytes(left) + self._chance.randbytes(self._chance.choice([0, 0, 7, 500]))
