"""The Python SDK 2.x, whose client tries the revision without sessions first."""

from contextlib import asynccontextmanager

from mcp import Client
from mcp.types import ElicitResult

from .result import read

PACKAGE = "mcp"
ELICITATION = True
PROGRESS = True


async def accept(context, params):
    return ElicitResult(action="accept", content={"ok": True})


class Open:
    def __init__(self, client, progressed):
        self.client, self.progressed = client, progressed

    async def list(self):
        return [t.name for t in (await self.client.list_tools()).tools]

    async def call(self, name, arguments, progress):
        async def report(done, total, message):
            self.progressed()

        return read(await self.client.call_tool(name, arguments, progress_callback=report if progress else None))


@asynccontextmanager
async def open(url, progressed):
    async with Client(url, elicitation_callback=accept) as client:
        yield Open(client, progressed)
