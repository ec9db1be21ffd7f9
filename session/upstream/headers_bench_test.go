package upstream

import (
	"net/http"
	"testing"
)

func BenchmarkRequestHeader(b *testing.B) {
	in := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": {"x"},
		"Mcp-Protocol-Version": {"2025-11-25"}, "User-Agent": {"client/1"}, "Accept-Encoding": {"gzip"}, "Authorization": {"Bearer x"}, "Content-Length": {"100"}}
	b.ReportAllocs()
	for b.Loop() {
		RequestHeader(in)
	}
}
