"""LangChain's adapters as their manual shows them: a session for each call."""

from contextlib import asynccontextmanager

from .langchain import ELICITATION, PACKAGE, PROGRESS, Open, client


@asynccontextmanager
async def open(url, progressed):
    c, _ = client(url, progressed)
    yield Open(await c.get_tools())
