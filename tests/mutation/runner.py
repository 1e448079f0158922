"""Runs mutations, several at a time where several workers are asked for."""

import concurrent.futures
import queue
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutation import Mutation
from tests.mutation.mutations import CONTROL
from tests.mutation.workshop import TIMEOUT, Controls, Result, Workshop, WorkshopError


class Outcome(NamedTuple):
    """A row of the table and what came of it."""

    mutation: Mutation
    result: Result

    @property
    def counts(self) -> bool:
        """Whether it says something of the tests."""
        return self.result.status in ("caught", "survived", "timeout")

    @property
    def fault(self) -> str:
        """Why the whole run fails by it; empty where it does not."""
        if not self.counts:
            return "the row is broken"
        if self.result.status == "caught":
            return ""
        return "" if self.mutation.survives else "nothing noticed it, and the row does not say why"


def sample(mutations: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """Some rows of as many areas as there can be; the same ones for the same seed and table.

    Rows that no test can notice are none of them.
    """
    draw = random.Random(seed)
    areas: dict[str, list[Mutation]] = {}
    for mutation in mutations:
        if not mutation.survives:
            areas.setdefault(mutation.area, []).append(mutation)
    piles = list(areas.values())
    draw.shuffle(piles)
    for pile in piles:
        draw.shuffle(pile)
    deepest = max(map(len, piles), default=0)
    dealt = [pile[i] for i in range(deepest) for pile in piles if i < len(pile)]
    chosen = set(dealt[:count])
    return [mutation for mutation in mutations if mutation in chosen]


def run(
    root: Path,
    mutations: Sequence[Mutation],
    *,
    workers: int = 1,
    timeout: float = TIMEOUT,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Tries out mutations in copies of a tree.

    Args:
        root: the repository; nothing in it is written.
        mutations: rows.
        workers: copies, each of which runs tests by itself.
        timeout: seconds of one run.
        told: called with each outcome as it comes.

    Returns:
        Outcomes in the order of the rows.

    Raises:
        WorkshopError: when the control fault is not caught: then nothing that the tests say is
            about the copy that is changed.
    """
    controls = Controls()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        shops = [Workshop(root, Path(folder) / str(i), timeout) for i in range(workers)]
        free: queue.Queue[Workshop] = queue.Queue()
        for shop in shops:
            free.put(shop)

        def one(mutation: Mutation) -> Outcome:
            shop = free.get()
            try:
                try:
                    controls.passed(shop, mutation.tests)
                    result = shop.try_out(mutation)
                except (WorkshopError, ValueError) as error:
                    result = Result("broken", message=str(error))
            finally:
                free.put(shop)
            outcome = Outcome(mutation, result)
            told(outcome)
            return outcome

        control = one(CONTROL)
        if control.result.status != "caught":
            raise WorkshopError(
                f"the control fault was not caught ({control.result.status}"
                f"{': ' if control.result.message else ''}{control.result.message}); no other "
                "result would mean anything."
            )
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            tasks = [pool.submit(one, mutation) for mutation in mutations]
            try:
                return [task.result() for task in tasks]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for shop in shops:
                    shop.stop()
                raise
