"""The Python SDK 1.x."""

from contextlib import asynccontextmanager

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import ElicitResult

from .result import read

PACKAGE = "mcp"
ELICITATION = True
PROGRESS = True


async def accept(context, params):
    return ElicitResult(action="accept", content={"ok": True})


class Open:
    def __init__(self, session, progressed):
        self.session, self.progressed = session, progressed

    async def list(self):
        return [t.name for t in (await self.session.list_tools()).tools]

    async def call(self, name, arguments, progress):
        async def report(done, total, message):
            self.progressed()

        return read(await self.session.call_tool(name, arguments, progress_callback=report if progress else None))


@asynccontextmanager
async def open(url, progressed):
    async with streamablehttp_client(url) as (receive, send, _):
        async with ClientSession(receive, send, elicitation_callback=accept) as session:
            await session.initialize()
            yield Open(session, progressed)
