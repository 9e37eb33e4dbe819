"""An executor over Ray's workers: each runs the ClientApp in a process of its own."""

import copy
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict

from clients.grid import CLIENT_APP_RAISED
from clients.identity import own_id
from clients.ray_session import RaySession
from clients.ray_worker import Worker, register_arrays
from fedpart.data import FederatedData
from fedpart.errors import ClientFailure, ConfigError, FedpartError, cause
from fedpart.machine import code_id
from fedpart.program import Program
from fedpart.side_by_side import groups

logger = logging.getLogger(__name__)

# Flower's own code: a ClientApp whose process died.
CLIENT_APP_CRASHED = 8
# Workers that may die over one client before it counts as failed.
_DEATHS_OF_A_CLIENT = 2
# Workers a seat may lose on the average, none becoming ready, before the run ends.
_FAILED_STARTS = 3
# Seconds that a worker has to load its packages and get ready; it takes about 3.
_START_SECONDS = 300.0

Cost = Callable[[Message, Context], float]


@dataclass(eq=False)
class _Job:
    """One message to one client, or those to several that compute side by side.

    Attributes:
        work: messages as the server sent them, and the clients' contexts.
        light: the same without arrays, and for each name of an array its record's number.
        deaths: workers that have died over it.
    """

    work: Sequence[tuple[Message, Context]]
    light: Sequence[tuple[Message, Context, dict[str, int]]]
    deaths: int = 0

    def answers(self, error: Error) -> list[Message]:
        """The same error reply for each message."""
        return [Message(error, reply_to=message) for message, _ in self.work]


@dataclass(eq=False)
class _Seat:
    """A place for one worker; who dies is replaced.

    Attributes:
        actor: Ray's handle.
        ready: has prepared itself.
        job: at work on it.
        held: numbers of the records it has been given.
        awaited: what it will answer next; of workers before it nothing is heard any more.
    """

    actor: Any = None
    ready: bool = False
    job: _Job | None = None
    held: set[int] = field(default_factory=set)
    awaited: Future[Any] | None = None


@dataclass(eq=False)
class RayExecutor:
    """Hands clients out to workers, the longest first, one to each at a time; ``close`` ends it.

    Attributes:
        session: Ray.
        workers: how many.
        gpus_per_client: share of a GPU for each.
        cost: expected work on a message, in any unit; the order of replies may follow from it, but
            no result does.
        at_once: clients that a worker computes side by side.
    """

    session: RaySession
    workers: int
    gpus_per_client: float = 0.0
    cost: Cost = field(default=lambda message, context: 0.0)
    at_once: int = 1

    def __post_init__(self) -> None:
        """No worker runs yet."""
        self._seats: list[_Seat] = []
        self._done: SimpleQueue[tuple[_Seat, Future[Any]]] = SimpleQueue()
        self._settings: dict[str, object] = {}
        self._data: Any = None
        self._failed_starts = 0
        self._batch, self._numbered = 0, 0
        # In the object store: the records of this batch, by number.
        self._records: dict[int, Any] = {}
        options = {"num_cpus": 1, "num_gpus": self.gpus_per_client, "max_restarts": 0}
        self._actor_class = self.session.ray.remote(Worker).options(**options)

    def start(self, program: Program, data: FederatedData) -> None:
        """Have all workers ready for clients of ``program``; those that run already go on.

        Args:
            program: the workers build it anew, from its settings.
            data: goes into the object store, once.

        Raises:
            ConfigError: a worker cannot be started or cannot prepare itself.
        """
        self._settings = program.config.model_dump(mode="json", by_alias=True)
        # Exact ndarrays: a subclass, such as memmap, would be copied into every worker.
        plain: dict[str, Any] = {
            name: np.asarray(value)
            for name, value in vars(data).items()
            if isinstance(value, np.ndarray)
        }
        shared = replace(data, **plain)

        def put() -> Any:
            register_arrays()
            return self.session.ray.put(shared)

        self._data = self.session.call(put)
        self._seats = self._seats or [_Seat() for _ in range(self.workers)]
        for seat in self._seats:
            if seat.ready and seat.job is None:
                self._prepare(seat)
            else:
                self._employ(seat)
        deadline = time.monotonic() + _START_SECONDS
        while not all(seat.ready for seat in self._seats):
            done = self._next(deadline)
            if done is None:
                ready = sum(seat.ready for seat in self._seats)
                raise ConfigError(
                    f"workers is {self.workers}, but only {ready} were ready after "
                    f"{_START_SECONDS:g} s: use fewer, or see who else uses the cluster"
                )
            self._free(*done)

    def close(self) -> None:
        """End the workers; the session goes on.

        Nothing of Ray's is kept: its ids begin anew with every session, so that what outlives one
        would, when it is freed, take the object of the same id from the next.
        """
        self._dismiss(self._seats)
        self._seats, self._data, self._records, self._done = [], None, {}, SimpleQueue()

    def everywhere(self, function: Callable[[Worker], Any]) -> list[Any]:
        """What ``function`` returns in each worker; no client may be under way."""
        ray = self.session.ray

        def ask() -> list[Any]:
            refs = [seat.actor.__ray_call__.remote(function) for seat in self._seats]
            return list(ray.get(refs))

        return self.session.call(ask)

    def run(self, work: Sequence[tuple[Message, Context]], deadline: float) -> Iterator[Message]:
        """See ``Executor``.

        A client that raises is answered by an error at once. A worker that dies is replaced and
        its client run once more; a second death is an error reply. A client that is under way at
        the deadline goes on, unheard, and keeps its worker; at the next deadline the worker is
        replaced.
        """
        jobs = self._jobs(work)
        waiting, unanswered = deque(jobs), set(jobs)
        late = [seat for seat in self._seats if seat.job is not None]
        while unanswered:
            for seat in self._seats:
                if waiting and seat.ready and seat.job is None and time.monotonic() <= deadline:
                    self._send(seat, waiting.popleft())
            done = self._next(deadline)
            if done is None:
                self._dismiss([seat for seat in late if seat.job not in (None, *jobs)])
                return
            job = self._free(*done)
            if job not in unanswered:
                continue
            replies = self._replies(job, done[1])
            if replies is None:
                waiting.appendleft(job)
            else:
                unanswered.remove(job)
                yield from replies

    def _jobs(self, work: Sequence[tuple[Message, Context]]) -> list[_Job]:
        """The longest first. Arrays go into the object store, each once for all clients."""
        self._batch += 1
        self._records = {}
        numbers: dict[int, int] = {}
        lights = []
        for message, context in work:
            arrays, rest = {}, RecordDict()
            for name, record in message.content.items():
                if isinstance(record, ArrayRecord):
                    if id(record) not in numbers:
                        numbers[id(record)] = self._put(record)
                    arrays[name] = numbers[id(record)]
                else:
                    rest[name] = record
            light = copy.copy(message)
            light.content = rest
            lights.append((light, context, arrays))
        both = zip(groups(work, self.at_once), groups(lights, self.at_once), strict=True)
        jobs = [_Job(*parts) for parts in both]
        return sorted(jobs, key=lambda j: sum(self.cost(*one) for one in j.work), reverse=True)

    def _put(self, record: ArrayRecord) -> int:
        self._numbered += 1
        self._records[self._numbered] = self.session.call(lambda: self.session.ray.put(record))
        return self._numbered

    def _employ(self, seat: _Seat) -> None:
        def start() -> None:
            if seat.actor is not None:
                # Most often it is dead; where only Ray has lost it, it must not linger.
                self.session.ray.kill(seat.actor)
            seat.actor, seat.job, seat.held = self._actor_class.remote(), None, set()

        self.session.call(start)
        self._prepare(seat)

    def _prepare(self, seat: _Seat) -> None:
        seat.ready = False
        what = (sys.path, self._settings, self._data, code_id())
        self._watch(seat, lambda: seat.actor.prepare.remote(*what))

    def _send(self, seat: _Seat, job: _Job) -> None:
        seat.job = job

        def submit() -> Any:
            # An actor does what it is asked in order, so the record is there when it is needed.
            needed = {number for _, _, arrays in job.light for number in arrays.values()}
            for number in sorted(needed - seat.held):
                seat.actor.hold.remote(self._batch, number, self._records[number])
                seat.held.add(number)
            return seat.actor.answer.remote(job.light, self.at_once)

        self._watch(seat, submit)

    def _watch(self, seat: _Seat, submit: Callable[[], Any]) -> None:
        # The queue, and not ray.wait, is what this thread waits for: see RaySession.
        future = seat.awaited = self.session.call(lambda: submit().future())
        future.add_done_callback(lambda done: self._done.put((seat, done)))

    def _next(self, deadline: float) -> tuple[_Seat, Future[Any]] | None:
        """What a worker has done, or None at the deadline."""
        while True:
            left = deadline - time.monotonic()
            try:
                # A lock cannot wait for much more than 200 years.
                seat, done = self._done.get(timeout=max(0.0, min(left, 1e9)))
            except Empty:
                return None
            if done is seat.awaited:
                return seat, done

    def _free(self, seat: _Seat, done: Future[Any]) -> _Job | None:
        """Make a seat ready for its next client, with another worker where its own has died.

        Returns:
            what the seat was at; None where it was getting ready.
        Raises:
            ConfigError: a worker cannot prepare itself.
            ClientFailure: workers die, one after the other, before they are ready.
        """
        job, seat.job = seat.job, None
        error = done.exception()
        if self._is_death(error):
            self._failed_starts += 0 if seat.ready else 1
            if self._failed_starts >= _FAILED_STARTS * self.workers:
                raise ClientFailure(f"workers die before they are ready: {_death(error)}")
            self._employ(seat)
        elif job is None:
            if error is not None:
                raised = getattr(error, "cause", None)
                why = str(raised) if isinstance(raised, FedpartError) else cause(str(error))
                raise ConfigError(f"workers cannot get ready: {why}")
            seat.ready, self._failed_starts = True, 0
        return job

    def _replies(self, job: _Job, done: Future[Any]) -> list[Message] | None:
        """The clients' replies, or error replies; None where they are to run once more."""
        error = done.exception()
        if error is None:
            replies = []
            for (reply, state), (_, context) in zip(done.result(), job.work, strict=True):
                # In place, as a client in this process would have changed it.
                context.state.clear()
                context.state.update(state)
                replies.append(cast(Message, reply))
            return replies
        if not self._is_death(error):
            # Not what the client raised, which is in a reply: its reply could not be sent, say.
            return job.answers(Error(CLIENT_APP_RAISED, str(error)))
        job.deaths += 1
        if job.deaths < _DEATHS_OF_A_CLIENT:
            for _, context in job.work:
                logger.warning("client %d runs again: %s", own_id(context), _death(error))
            return None
        reason = f"its worker died {job.deaths} times; at last: {_death(error)}"
        return job.answers(Error(CLIENT_APP_CRASHED, reason))

    def _is_death(self, error: BaseException | None) -> bool:
        """Whether a worker, and not a line of Python in it, is at fault."""
        exceptions = self.session.ray.exceptions
        return isinstance(error, exceptions.RayError) and not isinstance(
            error, exceptions.RayTaskError
        )

    def _dismiss(self, seats: Sequence[_Seat]) -> None:
        """Kill workers; where one was at work, that is noticed and made good as any death."""
        ray, actors = self.session.ray, [seat.actor for seat in seats]
        self.session.submit(lambda: [ray.kill(actor) for actor in actors if actor is not None])


def _death(error: BaseException | None) -> str:
    """What Ray knows of a death, in one line."""
    lines = str(error).splitlines() or [repr(error)]
    detail = next((x for x in lines if "Worker exit type" in x or "actor is dead" in x), lines[0])
    return cause(detail.partition(" Some common causes")[0])
