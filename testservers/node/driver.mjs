// Drives one unmodified MCP client for a test, by lines of JSON on standard
// input, each answered by one line on standard output:
//
//   {"do":"open","as":"a","url":…}      {"ok":{}}
//   {"do":"list","as":"a"}              {"ok":{"tools":["navigate",…]}}
//   {"do":"call","as":"a","name":…,"arguments":…,"progress":true}
//                                       {"ok":{"text":…,"isError":…,"progress":3}}
//   {"do":"close","as":"a"}             {"ok":{}}
//   {"do":"state"}                      {"ok":{"version":…,"elicitation":…,"events":…}}
//
// A failure is {"error":"what the client's caller reads"}. "as" names one of
// several sessions. A client is clients/NAME.mjs; what it exports is below.
//
//   node driver.mjs NAME
import { readFileSync } from 'node:fs';
import readline from 'node:readline';

// A library that writes to standard output must not write between the answers.
const answerLine = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr);

// package, elicitation, progress and open(url, hooks), which returns
// {list(), call(name, arguments, progress), close()}.
const client = await import(`./clients/${process.argv[2]}.mjs`);

function version() {
  const manifest = new URL(`./node_modules/${client.package}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(manifest)).version;
}

const sessions = new Map();

async function act(command) {
  if (command.do === 'state') {
    return { version: version(), elicitation: client.elicitation, events: client.progress };
  }
  if (command.do === 'open') {
    const counted = { progress: 0 };
    const session = await client.open(command.url, { progressed: () => counted.progress++ });
    sessions.set(command.as, { session, counted });
    return {};
  }
  const { session, counted } = sessions.get(command.as);
  switch (command.do) {
    case 'list':
      return { tools: await session.list() };
    case 'call': {
      counted.progress = 0;
      const result = await session.call(command.name, command.arguments ?? {}, command.progress ?? false);
      return { ...result, progress: counted.progress };
    }
    case 'close':
      sessions.delete(command.as);
      await session.close();
      return {};
  }
  throw new Error(`no such command: ${command.do}`);
}

// reason is what a person reads of an error, its causes included.
function reason(error) {
  const words = [];
  for (let e = error, n = 0; e && n < 4; e = e.cause, n++) words.push(String(e?.message ?? e));
  return words.join(': ');
}

// Some clients leave a promise behind that fails later; that is not an answer.
process.on('unhandledRejection', (error) => console.error('unhandled:', reason(error)));
process.on('uncaughtException', (error) => console.error('uncaught:', reason(error)));

for await (const line of readline.createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { ok: await act(JSON.parse(line)) };
  } catch (error) {
    answer = { error: reason(error) };
  }
  answerLine(JSON.stringify(answer) + '\n');
}
process.exit(0);
