// An unmodified TypeScript SDK client that a test drives by lines of JSON on
// standard input: {"do":"open","url":…} | {"do":"call","name":…,"arguments":…}
// | {"do":"terminate"} | {"do":"close"}. Each gets one line of JSON back:
// {"ok":…} or {"error":{"message":…,"code":…,"data":…}}.
//
//   node client.mjs sdk|client
import readline from 'node:readline';

const generation = process.argv[2];
let Client, StreamableHTTPClientTransport;
if (generation === 'sdk') {
  ({ Client } = await import('@modelcontextprotocol/sdk/client/index.js'));
  ({ StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js'));
} else if (generation === 'client') {
  ({ Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client'));
} else {
  console.error('client.mjs: want "sdk" or "client"');
  process.exit(2);
}

let client, transport;

async function act(command) {
  switch (command.do) {
    case 'open':
      transport = new StreamableHTTPClientTransport(new URL(command.url), {
        requestInit: command.headers ? { headers: command.headers } : undefined,
      });
      client = new Client({ name: 'typescript', version: '1' }, { capabilities: {} });
      await client.connect(transport);
      return { server: client.getServerVersion(), session: Boolean(transport.sessionId) };
    case 'call':
      return await client.callTool({ name: command.name, arguments: command.arguments ?? {} });
    case 'terminate':
      await transport.terminateSession();
      return {};
    case 'close':
      await client.close();
      return {};
  }
  throw new Error(`no such command: ${command.do}`);
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { ok: await act(JSON.parse(line)) };
  } catch (error) {
    answer = { error: { message: String(error?.message ?? error), code: error?.code, data: error?.data } };
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
process.exit(0);
