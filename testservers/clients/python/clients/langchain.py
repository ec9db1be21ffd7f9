"""LangChain's adapters, with one session that is kept: without one they open a
session for each call."""

from contextlib import asynccontextmanager

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from mcp.types import ElicitResult

PACKAGE = "langchain-mcp-adapters"
ELICITATION = True
PROGRESS = True


async def accept(mcp_context, params, context):
    return ElicitResult(action="accept", content={"ok": True})


class Open:
    def __init__(self, tools):
        self.tools = {t.name: t for t in tools}

    async def list(self):
        return list(self.tools)

    async def call(self, name, arguments, progress):
        out = await self.tools[name].ainvoke(arguments)
        if isinstance(out, list):
            out = "\n".join(c.get("text", "") if isinstance(c, dict) else str(c) for c in out)
        return str(out), False


def client(url, progressed):
    async def report(done, total, message, context):
        progressed()

    callbacks = Callbacks(on_progress=report, on_elicitation=accept)
    return MultiServerMCPClient({"s": {"transport": "streamable_http", "url": url}}, callbacks=callbacks), callbacks


@asynccontextmanager
async def open(url, progressed):
    c, callbacks = client(url, progressed)
    async with c.session("s") as session:
        yield Open(await load_mcp_tools(session, callbacks=callbacks, server_name="s"))
