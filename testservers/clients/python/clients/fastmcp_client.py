"""FastMCP's client."""

from contextlib import asynccontextmanager

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

from .result import read

PACKAGE = "fastmcp"
ELICITATION = True
PROGRESS = True


async def accept(message, response_type, params, context):
    return ElicitResult(action="accept", content={"ok": True})


class Open:
    def __init__(self, client, progressed):
        self.client, self.progressed = client, progressed

    async def list(self):
        return [t.name for t in await self.client.list_tools()]

    async def call(self, name, arguments, progress):
        async def report(done, total, message):
            self.progressed()

        return read(await self.client.call_tool(name, arguments, progress_handler=report if progress else None))


@asynccontextmanager
async def open(url, progressed):
    async with Client(url, elicitation_handler=accept) as client:
        yield Open(client, progressed)
