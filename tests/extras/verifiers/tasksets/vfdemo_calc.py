"""A taskset with task-scoped tools, one of them slow, a weighted reward and a metric."""

import asyncio

import verifiers.v1 as vf


class CalcData(vf.TaskData):
    answer: str


class CalcToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "calc"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two integers."""
        return str(a + b)

    @vf.tool
    async def slow(self, seconds: float) -> str:
        """Sleep in processes of its own, of which one leaves its session."""
        await asyncio.create_subprocess_exec("setsid", "sleep", f"{seconds + 1}")
        process = await asyncio.create_subprocess_exec("sleep", str(seconds))
        await process.wait()
        return "slept"


class CalcConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class CalcTask(vf.Task[CalcData, vf.State, CalcConfig]):
    @classmethod
    def toolsets(cls, config):
        return [CalcToolset(config.tools)]

    @vf.reward(weight=2.0)
    async def exact(self, trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class CalcTasksetConfig(vf.TasksetConfig):
    task: CalcConfig = CalcConfig()
    n: int = 3


class CalcTaskset(vf.Taskset[CalcTask, CalcTasksetConfig]):
    """Sums of three numbers."""

    def load(self):
        for i in range(self.config.n):
            yield CalcTask(
                CalcData(prompt=f"what is {i}+5 then +7?", answer=str(i + 12), system_prompt="use tools"),
                self.config.task,
            )


__all__ = ["CalcTaskset"]

if __name__ == "__main__":
    CalcToolset.run()
