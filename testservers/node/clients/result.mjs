// What every SDK's tools/call result has.
export function read(result) {
  const text = (result.content ?? []).map((c) => (c.type === 'text' ? c.text : `[${c.type}]`)).join('\n');
  return { text, isError: Boolean(result.isError) };
}

// Accepts the elicitation that the test's servers ask for.
export const accepted = { action: 'accept', content: { ok: true } };
