"""A taskset whose tools are one server for all tasks. They tell what stands in their environment."""

import os

import verifiers.v1 as vf


class SharedData(vf.TaskData):
    pass


class SharedToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "calc"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two integers, and say what the variables named in VFDEMO_SHOWN hold."""
        return f"{a + b} {[os.environ.get(name) for name in os.environ['VFDEMO_SHOWN'].split()]}"


class SharedTask(vf.Task[SharedData]):
    @vf.reward
    async def done(self, trace) -> float:
        return 1.0


class SharedConfig(vf.TasksetConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class SharedTaskset(vf.Taskset[SharedTask, SharedConfig]):
    @classmethod
    def toolsets(cls, config):
        return [SharedToolset(config.tools)]

    def load(self):
        for i in range(3):
            yield SharedTask(SharedData(prompt=f"add {i}"), self.config.task)


__all__ = ["SharedTaskset"]

if __name__ == "__main__":
    SharedToolset.run()
