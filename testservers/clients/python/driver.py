"""Drives one unmodified MCP client for a test; testservers/node/driver.mjs says
which lines it takes and answers.

    python driver.py NAME
"""

import asyncio
import importlib
import importlib.metadata
import json
import sys
import traceback


class Counted:
    """What a session's callbacks have counted."""

    def __init__(self):
        self.progress = 0

    def progressed(self):
        self.progress += 1


def reason(error):
    """What a person reads of an error; a group's members are what it is about."""
    words = []
    pending = [error]
    while pending and len(words) < 6:
        e = pending.pop(0)
        if isinstance(e, BaseExceptionGroup):
            pending.extend(e.exceptions)
            continue
        words.append(str(e) or type(e).__name__)
        if e.__cause__ is not None:
            pending.append(e.__cause__)
    return ": ".join(words)


class Session:
    """One session, whose context managers are entered and left by one task: the
    libraries' task groups must not be left by another."""

    def __init__(self, client, url):
        self.client, self.url = client, url
        self.counted = Counted()
        self.commands = asyncio.Queue()
        self.opened = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self.run())

    async def run(self):
        try:
            async with self.client.open(self.url, self.counted.progressed) as session:
                self.opened.set_result(None)
                while True:
                    act, answer = await self.commands.get()
                    if act is None:
                        break
                    try:
                        answer.set_result(await act(session))
                    except Exception as e:
                        answer.set_exception(e)
        except BaseException as e:
            if not self.opened.done():
                self.opened.set_exception(e)
                return
            if not isinstance(e, Exception):
                raise
            traceback.print_exc()
        self.ended = True

    async def do(self, act):
        answer = asyncio.get_running_loop().create_future()
        await self.commands.put((act, answer))
        await asyncio.wait([answer, self.task], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise RuntimeError("the client's session has ended")
        return answer.result()

    async def close(self):
        await self.commands.put((None, None))
        await self.task


async def act(client, sessions, command):
    what = command["do"]
    if what == "state":
        return {
            "version": importlib.metadata.version(client.PACKAGE),
            "elicitation": client.ELICITATION,
            "events": client.PROGRESS,
        }
    if what == "open":
        session = Session(client, command["url"])
        await session.opened
        sessions[command["as"]] = session
        return {}
    session = sessions[command["as"]]
    if what == "list":
        return {"tools": await session.do(lambda s: s.list())}
    if what == "call":
        session.counted.progress = 0
        name, arguments = command["name"], command.get("arguments") or {}
        text, is_error = await session.do(lambda s: s.call(name, arguments, command.get("progress", False)))
        return {"text": text, "isError": is_error, "progress": session.counted.progress}
    if what == "close":
        del sessions[command["as"]]
        await session.close()
        return {}
    raise ValueError(f"no such command: {what}")


async def main():
    client = importlib.import_module("clients." + sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr
    sessions = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            answer = {"ok": await act(client, sessions, json.loads(line))}
        except BaseException as e:
            answer = {"error": reason(e)}
        print(json.dumps(answer), file=answers, flush=True)


asyncio.run(main())
