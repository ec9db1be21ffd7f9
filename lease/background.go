package lease

import "sync"

// background counts goroutines that outlive their caller, so that Stop can wait
// for them. Unlike a WaitGroup it may be added to while somebody waits; what
// comes after that runs in the caller.
type background struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{}
}

func (b *background) run(f func()) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		f()
		return
	}
	b.n++
	b.mu.Unlock()
	go func() {
		defer b.done()
		f()
	}()
}

func (b *background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.n == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

func (b *background) wait() {
	b.mu.Lock()
	b.closed = true
	if b.n == 0 {
		b.mu.Unlock()
		return
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	<-idle
}
