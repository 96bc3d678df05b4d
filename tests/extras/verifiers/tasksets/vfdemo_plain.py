"""A taskset without tools, that never ends, and whose tasks can be told to fail."""

import itertools

import verifiers.v1 as vf


class PlainData(vf.TaskData):
    answer: str = ""
    fault: str = ""


class PlainTask(vf.Task[PlainData]):
    @vf.reward
    async def right(self, trace) -> float:
        if self.data.fault == "reward":
            raise ValueError("the reward is broken")
        return float(self.data.answer in trace.last_reply)

    async def setup(self, trace) -> None:
        trace.info["seen"] = {"idx": self.data.idx}
        if self.data.fault == "setup":
            raise ValueError("the task cannot be set up")


class PlainTaskset(vf.Taskset[PlainTask]):
    INFINITE = True

    def load(self):
        for i in itertools.count():
            yield PlainTask(PlainData(prompt=f"I want the number {i}", answer="done"), self.config.task)


__all__ = ["PlainTaskset"]
