package upstream

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2"
)

// TestOneFetchOfATokenWhateverWaitsForIt counts in fake time.
func TestOneFetchOfATokenWhateverWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		s := &tokenSource{fetch: func(ctx context.Context) (*oauth2.Token, error) {
			fetches++
			<-ctx.Done() // an authorization server that hangs
			return nil, ctx.Err()
		}}
		ask := func(n int, patience time.Duration) {
			t.Helper()
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					if _, err := s.token(ctx); err == nil {
						t.Error("a token came")
					}
				})
			}
			all.Wait()
		}
		began := time.Now()
		ask(2000, time.Second)
		ask(2000, time.Minute) // the same fetch, until it ends
		if took := time.Since(began); fetches != 1 || took != fetchTimeout {
			t.Errorf("%d fetches for 4000 requests in %s", fetches, took)
		}
		ask(1000, time.Second) // answered by the failure
		if took := time.Since(began); fetches != 1 || took != fetchTimeout {
			t.Errorf("%d fetches while the failure is kept, in %s", fetches, took)
		}
		time.Sleep(failureKept)
		ask(1000, time.Second)
		if fetches != 2 {
			t.Errorf("%d fetches after it", fetches)
		}
		time.Sleep(fetchTimeout)
		synctest.Wait() // and the bubble ends only where no goroutine is left
	})
}

func TestATokenIsFetchedAnewWhenItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		fails := errors.New("refused")
		s := &tokenSource{fetch: func(context.Context) (*oauth2.Token, error) {
			if fetches++; fetches == 1 {
				return nil, fails
			}
			return &oauth2.Token{AccessToken: strings.Repeat("t", fetches), Expiry: time.Now().Add(time.Minute)}, nil
		}}
		if _, err := s.token(t.Context()); !errors.Is(err, fails) {
			t.Errorf("%v", err)
		}
		time.Sleep(failureKept)
		for range 3 {
			if tok, err := s.token(t.Context()); err != nil || tok != "tt" {
				t.Errorf("%q, %v", tok, err)
			}
		}
		time.Sleep(time.Minute)
		if tok, err := s.token(t.Context()); err != nil || tok != "ttt" {
			t.Errorf("%q, %v", tok, err)
		}
	})
}
