"""Power cuts of a real file system with a warehouse and its catalog in it; for a test that root runs.

`python -m tests.power_cuts FOLDER ROUNDS`: a process loads, publishes, compacts and expires on an ext4 in a
loop device. At a random moment it is stopped, and what the device has got by then is copied: what nobody has
synced is in the kernel's memory only, and not in the copy. The copy takes the disk's place. Every load that
was made and every row that a reader has seen must be there, by the catalog.db on the same disk. Then each row
must be there once, as after a kill.

ext4 syncs a new file together with the folders that name it, and the copy has what the device got without
being told to flush. A disk that keeps neither is the model of `tests/unit/warehouse/load/test_power_cut.py`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from millrace_warehouse.history.layout import Topic, load_numbers
from millrace_warehouse.storage import open_storage
from tests.kill_rounds import (
    TOPIC,
    Site,
    check,
    compact,
    expire,
    fork,
    in_a_process,
    load,
    look,
    made_site,
    publish,
    work_on,
)
from tests.support import wait_until

IMAGE_BYTES = 1 << 28
"""Size of a sparse file: unwritten blocks take no room."""


class LoopDisk:
    """An ext4 in a file, mounted; the kernel writes its journal when somebody syncs, and not by itself."""

    def __init__(self, folder: Path) -> None:
        self._image, self.mount = folder / "disk.img", folder / "disk"
        self.lost = 0
        """Files that were gone or shorter after the cuts."""
        self.mount.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        self._mount()

    def cut_power(self, users: list[int]) -> None:
        """Keep what the device has got; the processes that use the disk are ended with it."""
        for pid in users:
            os.kill(pid, signal.SIGSTOP)
        for pid in users:  # one that syncs stops when that is done
            wait_until(f"{pid} stands still", lambda pid=pid: stands_still(pid))  # type: ignore[misc]
        copied = self._image.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", str(self._image), str(copied)], check=True)
        for pid in users:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        before = self._files()
        self.close()
        copied.rename(self._image)
        self._mount()
        self.lost += len(before - self._files())

    def close(self) -> None:
        subprocess.run(["umount", str(self.mount)], check=True)

    def _files(self) -> set[tuple[Path, int]]:
        paths = (path for path in self.mount.rglob("*") if path.is_file())
        return {(path, path.stat().st_size) for path in paths}

    def _mount(self) -> None:
        options = "loop,commit=86400,noauto_da_alloc"
        subprocess.run(["mount", "-o", options, str(self._image), str(self.mount)], check=True)


def stands_still(pid: int) -> bool:
    """True when every thread of a process is stopped."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(") ")[2].startswith(("T", "Z")) for stat in tasks)


def work(site: Site) -> None:
    load(site)
    publish(site)
    look(site)  # and write down, on another disk, what a reader has seen
    compact(site)
    expire(site)


def after_the_cut(site: Site) -> None:
    """Check that the loads from before the cut are still there."""
    there = len(load_numbers(Topic(open_storage(site.warehouse), TOPIC)))
    assert there >= site.noted()["loads"], f"{there} loads of {site.noted()['loads']} that were made"
    look(site)


def main(folder: Path, rounds: int) -> None:
    disk, parent = LoopDisk(folder), os.getpid()
    warehouse = disk.mount / "w"
    warehouse.mkdir()
    os.sync()
    try:
        with made_site(str(warehouse), "", rounds) as site:
            for _ in range(rounds):
                site.begin_round()
                worker = fork(lambda: work_on(site, work, parent))
                time.sleep(random.uniform(0.05, 3.0))
                disk.cut_power([worker])
                in_a_process(site, after_the_cut)
                in_a_process(site, check)
            site.print_errors()
            print(f"{rounds} power cuts, {disk.lost} files lost: {site.done}", flush=True)
    finally:
        disk.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
