//go:build external

package clients

import "cmp"

// subject is a client that is driven.
type subject struct {
	id       string // in URLs
	title    string // on the page
	language string // of its driver
	driver   string // the driver's name for it; empty means id
	needs    string // what its user must set; empty means nothing
	token    string // its credential; empty means that it is an anonymous caller
	// differs are the scenarios in which it is not as promised, with the words of
	// the run and why it is not the gateway's to mend.
	differs map[string]difference
}

type difference struct{ words, why string }

func (s subject) driverName() string { return cmp.Or(s.driver, s.id) }

// promised are the words that a scenario may have for every client that does not
// differ.
var promised = map[string][]string{
	scBasic:    {ok},
	scProgress: {ok, unsupported},
	scElicit:   {ok, unsupported},
	scClose:    {"frees the slot", "keeps the slot until it is idle"},
	scReopen:   {ok},
	scBusy:     {"the reason in words"},
	scIdle:     {toldOnce, unnoticed},
	scRevoked:  {toldOnce, unnoticed},
	scReplaced: {"LEASE_LOST, then LEASE_BUSY; after the second works on", "both work"},
	scStopped:  {toldOnce, unnoticed},
	scKilled:   {toldOnce, unnoticed},
	scDied:     {"nothing is left"},
	scCrashed:  {toldOnce, unnoticed},
	scChildren: {toldOnce, unnoticed},
	scOrphans:  {toldOnce, unnoticed},
	// What is direct is noted, whatever it is.
	scDirect: nil,
	scEnded:  nil,
}

var subjects = []subject{
	{id: "sdk-v1", title: "TypeScript SDK 1.x", language: "node"},
	{id: "sdk-v2", title: "TypeScript SDK 2.x", language: "node"},
	{id: "sdk-v2-auto", title: "TypeScript SDK 2.x, `mode: 'auto'`", language: "node"},
	{id: "ai-sdk", title: "AI SDK", language: "node"},
	{id: "langchain-js", driver: "langchain", title: "LangChain adapters (JS)", language: "node"},
	{id: "mastra", title: "Mastra", language: "node"},
	{id: "openai-agents-js", driver: "openai-agents", title: "OpenAI agents (JS)", language: "node"},
	{id: "mcp-remote", title: "mcp-remote", language: "node"},
	{id: "inspector", title: "Inspector's CLI", language: "node", needs: "`--transport http`"},
	{id: "mcp-go", title: "mcp-go", language: "go"},
	{id: "go-sdk", title: "go-sdk", language: "go"},
	{id: "python-v2", driver: "sdk_v2", title: "Python SDK 2.x", language: "python-2"},
	{id: "python-v1", driver: "sdk_v1", title: "Python SDK 1.x", language: "python-1"},
	{id: "fastmcp", driver: "fastmcp_client", title: "FastMCP", language: "python-2"},
	{id: "langchain-py", driver: "langchain", title: "LangChain adapters (Python)", language: "python-1"},
	{id: "langchain-py-calls", driver: "langchain_per_call", title: "LangChain adapters (Python), a session for each call", language: "python-1"},
	{id: "openai-agents-py", driver: "openai_agents", title: "OpenAI agents (Python)", language: "python-2"},
	{id: "java-v2", driver: "v2", title: "Java SDK 2.x", language: "java"},
	{id: "java-v1", driver: "v1", title: "Java SDK 1.x", language: "java"},
	{id: "brain", title: "The Brain (its wire behaviour)", language: "go", token: brainKey, needs: "`/@user/` in the URL, or a token for each user"},
}
