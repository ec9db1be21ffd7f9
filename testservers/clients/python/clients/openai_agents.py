"""OpenAI's agents."""

from contextlib import asynccontextmanager

from agents.mcp import MCPServerStreamableHttp

from .result import read

PACKAGE = "openai-agents"
ELICITATION = False  # it has no handler for it
PROGRESS = False  # its call_tool takes no callback


class Open:
    def __init__(self, server):
        self.server = server

    async def list(self):
        return [t.name for t in await self.server.list_tools()]

    async def call(self, name, arguments, progress):
        return read(await self.server.call_tool(name, arguments))


@asynccontextmanager
async def open(url, progressed):
    async with MCPServerStreamableHttp(params={"url": url}, name="s") as server:
        yield Open(server)
