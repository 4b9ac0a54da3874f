"""Tasks of a Spark job, and the release that may compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.errors import MillraceError
from millrace.installation import Release, release
from millrace_spark.jobs.tasks import in_tasks, same_release, unpacked


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    ("driver", "executor"),
    [
        (Release("0.1.0", "aaaa1111"), Release("0.1.0", "aaaa1111")),
        (Release("0.1.0", ""), Release("0.1.0", "aaaa1111")),
        (Release("0.1.0", "aaaa1111"), Release("0.1.0", "")),
    ],
)
def test_a_task_works_where_its_driver_s_release_or_a_checkout_of_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, driver: Release, executor: Release
) -> None:
    monkeypatch.setattr("millrace_spark.jobs.tasks.release", lambda: executor)
    assert unpacked([same_release(driver, double, 4)]) == [8]


@pytest.mark.parametrize(
    "executor", [Release("0.1.0", "bbbb2222"), Release("0.2.0", "aaaa1111"), Release("0.2.0", "")]
)
def test_a_task_of_another_release_refuses_to_work_and_names_both(
    monkeypatch: pytest.MonkeyPatch, executor: Release
) -> None:
    monkeypatch.setattr("millrace_spark.jobs.tasks.release", lambda: executor)
    with pytest.raises(MillraceError) as refused:
        unpacked([same_release(Release("0.1.0", "aaaa1111"), double, 4)])
    assert f"the executors have Millrace {executor}, the driver has 0.1.0 (aaaa1111)" in str(refused.value)


def test_the_release_of_this_installation_may_be_itself() -> None:
    assert release().may_be(release())


class OtherExecutors:
    """A SparkContext whose executors have another release than its driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def parallelize(self, tasks: list[Any], _slices: int) -> OtherExecutors:
        self._tasks = tasks
        return self

    def map(self, function: Callable[[Any], Any]) -> OtherExecutors:
        self._function = function
        return self

    def collect(self) -> list[Any]:
        self._monkeypatch.setattr("millrace_spark.jobs.tasks.release", lambda: Release("0.0.1", ""))
        return [self._function(task) for task in self._tasks]


def test_tasks_that_are_sent_to_executors_of_another_release_refuse_to_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(MillraceError, match=r"the executors have Millrace 0\.0\.1, the driver has "):
        in_tasks(cast(Any, OtherExecutors(monkeypatch)), double, [4])
