"""A FastMCP server for the tests.

    python server.py [PORT]     over HTTP at /mcp, else over stdio
"""

import asyncio
import sys

from fastmcp import Context, FastMCP

server = FastMCP("fastmcp")


@server.tool
def echo(text: str) -> str:
    return text


@server.tool
async def steps(ctx: Context, count: int) -> str:
    for i in range(count):
        await ctx.report_progress(i + 1, count)
        await asyncio.sleep(0.05)  # some clients show an event after the result
    return f"{count} steps"


if len(sys.argv) > 1:
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
