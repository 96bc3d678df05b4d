"""Bugs of the client's lane: what its runs are told, and what the server is."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

LANE: Final = "env_client/lane.py"
STREAM: Final = "env_client/lane_stream.py"
END: Final = "env_client/lane_end.py"
RUN: Final = "env_client/lane_run.py"
FRAMES: Final = "env_client/lane_frames.py"
CLIENT: Final = "env_client/client.py"
EPISODE: Final = "env_client/stream.py"
LANE_TESTS: Final = "tests/unit/client/test_client_lane.py"
OPENS_TESTS: Final = "tests/unit/client/test_client_lane_opens.py"
ENDS_TESTS: Final = "tests/unit/client/test_client_lane_ends.py"
RUN_TESTS: Final = "tests/unit/client/test_client_lane_run.py"
FRAMES_TESTS: Final = "tests/unit/client/test_client_lane_frames.py"
STREAM_TESTS: Final = "tests/unit/client/test_client_lane_stream.py"
CONFIRMS: Final = "tests/unit/client/test_client_lane_confirms.py"
FULL_TESTS: Final = "tests/unit/client/test_client_full_executor.py"

CLIENT_LANE: Final = (
    Mutant(
        "lane: an abandoned run is confirmed",
        EPISODE,
        "        self._intake.check_wanted()\n",
        "",
        (f"{CONFIRMS}::test_a_run_that_was_abandoned_while_it_was_checked_is_not_confirmed",),
    ),
    Mutant(
        "lane: a run whose stream broke has ended well",
        END,
        "        return RunStatus(self.code.value[0], ",
        "        return RunStatus(0, ",
        (f"{ENDS_TESTS}::test_a_run_without_an_end_is_not_delivered_whatever_came_of_it",),
    ),
    Mutant(
        "lane: what had come of a run is forgotten where its server stops",
        END,
        "        if self.refusal is not None and nothing_came:",
        "        if self.refusal is not None:",
        (
            f"{ENDS_TESTS}::test_when_its_server_stops_what_has_not_begun_was_refused_and_the_rest_is_uncertain",
        ),
    ),
    Mutant(
        "lane: any end of a stream refuses the runs of which nothing came",
        END,
        '        if said.reason == "DRAINING":',
        "        if said.reason:",
        (f"{ENDS_TESTS}::test_a_run_without_an_end_is_not_delivered_whatever_came_of_it",),
    ),
    Mutant(
        "lane: a status that grpc.aio hides stays hidden",
        STREAM,
        "StreamEnd.of(await self._status.behind(error))",
        "StreamEnd.of(error)",
        (f"{ENDS_TESTS}::test_a_status_that_grpc_hides_is_found",),
    ),
    Mutant(
        "lane: without a connection a run is sent by a call of its own",
        LANE,
        "        return self._channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE",
        "        return True",
        (f"{OPENS_TESTS}::test_nothing_is_sent_to_a_server_that_cannot_be_reached_and_that_is_said",),
    ),
    Mutant(
        "lane: a server is sent runs without the capability",
        STREAM,
        "        self._carries = CAPABILITY in opened.capabilities",
        "        self._carries = True",
        (f"{OPENS_TESTS}::test_a_server_that_carries_no_runs_is_asked_again_when_the_stream_broke",),
    ),
    Mutant(
        "lane: runs that are handed on as the loop is torn down",
        STREAM,
        "        if not (end.is_torn or self._is_parting or end.refusal):",
        "        if not (self._is_parting or end.refusal):",
        (f"{ENDS_TESTS}::test_tasks_that_are_cancelled_before_they_began",),
    ),
    Mutant(
        "lane: what was left is still read",
        STREAM,
        "        if self._runs.pop(number, None) is not None:",
        "        if self._runs.get(number) is not None:",
        (f"{ENDS_TESTS}::test_a_run_that_was_left_is_held_no_longer_whether_or_not_its_end_comes",),
    ),
    Mutant(
        "lane: every stream has the first epoch",
        LANE,
        "        self._epoch += 1",
        "        self._epoch = 1",
        (f"{ENDS_TESTS}::test_when_it_breaks_each_of_its_runs_hears_why_and_the_next_opens_it_anew",),
    ),
    Mutant(
        "lane: a big request is carried",
        LANE,
        "self._stream_for_runs() if size <= _CARRIED_BYTES else None",
        "self._stream_for_runs()",
        (f"{OPENS_TESTS}::test_a_big_request_travels_by_run",),
    ),
    Mutant(
        "lane: no goodbye",
        LANE,
        "                await stream.part(timeout)",
        "                pass",
        (f"{LANE_TESTS}::test_all_runs_share_one_stream_of_a_session_of_its_own",),
    ),
    Mutant(
        "lane: a server that cannot open it is asked for each run",
        LANE,
        "        self._open_at = asyncio.get_running_loop().time() + pause",
        "        pass",
        (f"{OPENS_TESTS}::test_a_stream_that_is_not_opened_is_tried_again_after_a_pause",),
    ),
    Mutant(
        "lane: the server is not told that a run is left",
        RUN,
        "        if carrier is not None:\n            carrier.leave(self._number)\n        if self._call",
        "        if self._call",
        (f"{RUN_TESTS}::test_cancelled",),
    ),
    Mutant(
        "lane: what is not read is not bounded",
        RUN,
        "        if self._credit <= 0:",
        "        if False:",
        (f"{RUN_TESTS}::test_more_than_was_allowed_ends_it",),
    ),
    Mutant(
        "lane: credit for what has come and not for what was read",
        RUN,
        "            self._credit -= len(piece)\n",
        "            self._carrier.credit(self._number, self, pressing=True)\n",
        (f"{RUN_TESTS}::test_credit_is_given_back_in_lumps_for_what_was_read",),
    ),
    Mutant(
        "lane: all credit waits for something else to be said",
        RUN,
        "pressing=self._taken >= _LUMP_BYTES)",
        "pressing=False)",
        (f"{RUN_TESTS}::test_credit_is_given_back_in_lumps_for_what_was_read",),
    ),
    Mutant(
        "lane: any credit is worth a message",
        FRAMES,
        "        if not (self._is_pressing or self._confirms):\n            return None\n",
        "",
        (f"{FRAMES_TESTS}::test_credit_that_is_not_pressing_leaves_with_what_is",),
    ),
    Mutant(
        "lane: credit that rides along takes the press away from what is due at once",
        FRAMES,
        "        self._is_pressing |= pressing\n",
        "        self._is_pressing = pressing\n",
        (f"{FRAMES_TESTS}::test_credit_that_is_not_pressing_does_not_hold_up_what_is",),
    ),
    Mutant(
        "lane: credit that is pressing waits for something else to be said",
        STREAM,
        "        if pressing:\n            self._news.set()\n",
        "",
        (f"{LANE_TESTS}::test_a_caller_that_does_not_read_holds_up_no_other",),
    ),
    Mutant(
        "lane: a run that never left is left",
        FRAMES,
        "            del self._due[number]\n        else:",
        "            self._due[number] = _LEAVE\n        else:",
        (f"{FRAMES_TESTS}::test_of_a_run_that_is_left_nothing_else_is_said",),
    ),
    Mutant(
        "lane: runs that are handed on as the client is closed",
        STREAM,
        "        if not (end.is_torn or self._is_parting or end.refusal):",
        "        if not (end.is_torn or end.refusal):",
        (
            f"{STREAM_TESTS}::test_nothing_is_handed_on_by_who_is_closed",
            f"{OPENS_TESTS}::test_a_lane_that_is_closed_while_it_is_opened_sends_nothing",
        ),
    ),
    Mutant(
        "lane: a run that was never sent ends with the stream",
        STREAM,
        "        if not (end.is_torn or self._is_parting or end.refusal):",
        "        if self._opened is None and not end.is_torn:",
        (f"{STREAM_TESTS}::test_when_it_breaks_what_was_never_sent_is_handed_on",),
    ),
    Mutant(
        "lane: a writer that was cancelled leaves its runs waiting",
        STREAM,
        "        if writer.cancelled():\n            self.give_up(",
        "        if writer.cancelled():\n            repr(",
        (f"{STREAM_TESTS}::test_when_its_writer_is_cancelled_its_runs_end",),
    ),
    Mutant(
        "lane: a writer that has ended leaves its runs waiting",
        STREAM,
        "        elif not self._is_parting:",
        "        elif False:",
        (f"{STREAM_TESTS}::test_when_its_writer_ends_its_runs_end",),
    ),
    Mutant(
        "lane: a server is given up whose word had come",
        STREAM,
        "self._loop.call_later(open_seconds, self._look_again, open_seconds)",
        "self._loop.call_later(open_seconds, self._lose_patience, open_seconds)",
        (f"{STREAM_TESTS}::test_a_loop_that_stood_still_hears_what_was_said_in_time",),
    ),
    Mutant(
        "lane: a server without sessions is never asked again",
        LANE,
        "                pause = max(pause, _LONG_PAUSE_SECONDS)",
        '                pause = float("inf")',
        (f"{OPENS_TESTS}::test_a_server_that_has_no_sessions_may_have_them_later",),
    ),
    Mutant(
        "lane: a server without sessions is asked again and again",
        LANE,
        "                pause = max(pause, _LONG_PAUSE_SECONDS)",
        "                pass",
        (f"{OPENS_TESTS}::test_a_server_that_has_no_sessions_may_have_them_later",),
    ),
    Mutant(
        "lane: a confirmation that nobody wants is sent",
        STREAM,
        "        self._outbox.withdraw(request_id)\n",
        "",
        (f"{STREAM_TESTS}::test_a_confirmation_that_nobody_wants_any_more_does_not_leave",),
    ),
    Mutant(
        "lane: its reader waits for the caller's own work",
        STREAM,
        "await self._side.do(decoded, message)",
        "await asyncio.to_thread(decoded, message)",
        (f"{FULL_TESTS}::test_runs_with_big_messages_and_those_beside_them[lane]",),
    ),
    Mutant(
        "a run's reader waits for the caller's own work",
        EPISODE,
        "await self._side.do(self._intake.take, data)",
        "await asyncio.to_thread(self._intake.take, data)",
        (f"{FULL_TESTS}::test_runs_with_big_messages_and_those_beside_them",),
    ),
    Mutant(
        "a big episode's check waits for the caller's own work",
        EPISODE,
        "await self._side.do(conclude)",
        "await asyncio.to_thread(conclude)",
        (f"{FULL_TESTS}::test_runs_with_big_messages_and_those_beside_them",),
    ),
    Mutant(
        "closing waits for the caller's own work",
        CLIENT,
        'SideThread.once("envtrio-end", part, ',
        "asyncio.to_thread(part, ",
        (f"{FULL_TESTS}::test_closing_says_what_is_owed",),
    ),
)
