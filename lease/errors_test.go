package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

func TestABusySentenceSaysTheAgeThatItsDataHas(t *testing.T) {
	for _, oldest := range []time.Duration{0, 499 * time.Millisecond, 500 * time.Millisecond, 999 * time.Millisecond, 1501 * time.Millisecond, 42 * time.Second} {
		e := &BusyError{Resource: "browser", Level: definition.User, Cap: 1, Count: 1, Oldest: oldest}
		if want := fmt.Sprintf("the oldest for %d s;", e.OldestSeconds()); !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %q lacks %q", oldest, e, want)
		}
	}
}
