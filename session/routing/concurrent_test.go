package routing

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
)

// Many calls, clients that leave, and GET streams that take over from each other,
// in front of a peer that answers in any order: each call gets its own response,
// and no other message reaches two streams.
func TestEveryMessageReachesOneStream(t *testing.T) {
	const calls, notes = 300, 5
	r := newRig(t)
	requests := make(chan string, calls)
	r.peer(requests, notes)

	var mu sync.Mutex
	seen := map[string]int{} // by the number of a note
	read := func(resp *http.Response, atMost int) string {
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(resp.Body, int64(atMost)))
		if err != nil {
			t.Errorf("%v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, note := range noteForm.FindAllStringSubmatch(string(text), -1) {
			seen[note[1]]++
		}
		return string(text)
	}

	listeners := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(listeners)
		var reading sync.WaitGroup
		defer reading.Wait()
		for {
			resp := r.Listen(request(t.Context(), "GET", sse, ""))
			reading.Go(func() { read(resp, 1<<20) })
			select {
			case <-stop:
				r.End()
				return
			default:
			}
		}
	}()

	var clients sync.WaitGroup
	for i := range calls {
		clients.Go(func() {
			id := strconv.Itoa(i)
			accept, atMost := both, 1<<20
			switch i % 4 {
			case 1:
				accept = jsonType
			case 2:
				atMost = rand.IntN(200) // leaves early
			}
			resp, err := r.Post(request(t.Context(), "POST", accept, call(id)), r.to(requests))
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			if text := read(resp, atMost); i%4 != 2 && !regexp.MustCompile(`"id":`+id+`,`).MatchString(text) {
				t.Errorf("call %s was answered with %s", id, text)
			}
		})
	}
	clients.Wait()
	close(requests)
	<-r.sent // the peer has said all
	close(stop)
	<-listeners
	for note, n := range seen {
		if n != 1 {
			t.Errorf("note %s reached %d streams", note, n)
		}
	}
	if len(seen) == 0 {
		t.Error("no note reached anybody")
	}
	if n := len(r.waiting) + len(r.progress) + len(r.posts); n > 0 {
		t.Errorf("%d entries are left behind", n)
	}
}

var (
	noteForm = regexp.MustCompile(`"method":"note","params":(\d+)\}`)
	idForm   = regexp.MustCompile(`"id":(\d+),`)
)

// peer answers requests in any order and says notes in between.
func (r *rig) peer(requests <-chan string, notes int) {
	go func() {
		defer func() { r.sent <- "done" }()
		var open []string
		note := 0
		for request := range requests {
			open = append(open, idForm.FindStringSubmatch(request)[1])
			for range rand.IntN(notes) {
				note++
				r.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"note","params":%d}`, note))
			}
			// Half of what is open, so that all is answered in the end.
			for len(open) > 0 && (rand.IntN(2) == 0 || len(requests) == 0) {
				k := rand.IntN(len(open))
				r.say(progress(open[k]), result(open[k]))
				open = append(open[:k], open[k+1:]...)
			}
		}
	}()
}

func (r *rig) to(requests chan<- string) func(context.Context, []byte) error {
	return func(_ context.Context, message []byte) error {
		requests <- string(message)
		return nil
	}
}
