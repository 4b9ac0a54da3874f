"""Algorithm 1 of the 2011 paper: the assignment of a topic's partitions to the streams of a group.

Pure. Every consumer computes the assignment from the same registries, so all consumers get the same result.
"""

from __future__ import annotations

from collections.abc import Iterable


def assign(partitions: Iterable[int], streams: Iterable[str]) -> dict[str, list[int]]:
    """Return the partitions of each stream: each partition goes to one stream, and shares differ by one at
    most.

    The paper gives Ci the partitions j*N to (j+1)*N-1 with N = |P|/|C|. If partitions are left over, the
    first |P| mod |C| streams take one more each, as in LinkedIn's code.
    """
    p_t = sorted(partitions)  # all partitions of the topic
    c_t = sorted(streams)  # all streams of the group that read the topic
    if not c_t:
        return {}
    n, rest = divmod(len(p_t), len(c_t))
    assigned = {}
    first = 0
    for j, c_i in enumerate(c_t):
        last = first + n + (1 if j < rest else 0)
        assigned[c_i] = p_t[first:last]
        first = last
    return assigned
