"""Runs the tasks of a plan on their workers, as many beside each other as there are processors."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.run.launch import cores, shares
from harness.run.ledger import Ledger
from harness.run.plan import Lane, Task
from harness.run.worker import Worker


class Engine:
    """Start it, wait for the ledger's rows or for the end, and stop it."""

    def __init__(self, lanes: Sequence[Lane], ledger: Ledger, beside: bool = True) -> None:
        """``beside``: whether lanes may run at once."""
        self.lanes, self.ledger = list(lanes), ledger
        self.side_by_side = beside and cores() > 1 and len(self.lanes) > 1
        """Whether several workers run at once. Exclusive checks are then asked at the end."""
        self._thread = threading.Thread(target=self._run_all, daemon=True)
        self._lock = threading.Lock()
        self._free: list[frozenset[int]] = []

    def start(self) -> None:
        """Run all lanes in threads of their own."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end. Raises what stopped a lane."""
        self._thread.join()
        self.ledger.check_failure()

    def run(self, task: Task, worker: Worker, checks: Sequence[str]) -> None:
        """Have those of the checks answered that were asked and are not answered yet, in this thread."""
        wanted = self.ledger.wanted(task, checks)
        if wanted and not self.ledger.stopped:
            task.run(worker, wanted, self.ledger)
            self.ledger.finish(task, wanted)

    def _run_all(self) -> None:
        try:
            self._free = shares(len(self.lanes)) if self.side_by_side else [frozenset()]
            with ThreadPoolExecutor(len(self._free) or 1) as pool:
                deferred = list(pool.map(self._run_lane, self.lanes))
            for lane, tasks in zip(self.lanes, deferred, strict=True):
                for task in tasks:
                    self.run(task, lane.worker, task.exclusive)
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            self.ledger.fail(error)

    def _run_lane(self, lane: Lane) -> list[Task]:
        """Run a lane on one of the free shares of the processors. Returns the tasks with checks to be asked at the end."""
        share = self._take_share(lane.worker)
        deferred = []
        try:
            for task in lane.tasks:
                later = task.exclusive if self.side_by_side else ()
                self.run(task, lane.worker, [check for check in task.checks if check not in later])
                deferred += [task] if later else []
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            self.ledger.fail(error)
        finally:
            if self.side_by_side:
                lane.worker.stop()  # the next one needs its memory
                lane.worker.share = frozenset()
            with self._lock:
                self._free.append(share)
        return deferred

    def _take_share(self, worker: Worker) -> frozenset[int]:
        """The worker's own share where it is free, else another one, with which it starts anew."""
        with self._lock:
            share = worker.share if worker.share in self._free else self._free[-1]
            self._free.remove(share)
        if worker.share != share:
            worker.stop()
            worker.share = share
        return share

    def stop(self) -> None:
        """End the workers; rows already written stay."""
        self.ledger.stop()
        while self._thread.is_alive():  # killed again, should a lane just be starting one
            for lane in self.lanes:
                lane.worker.kill()
            self._thread.join(0.1)
        for lane in self.lanes:
            lane.worker.stop()
