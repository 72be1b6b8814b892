package lockscope

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// grant is a granted lock, shared by the holds of an owner that reentered it.
type grant struct {
	name, kind, holder string
	token              int64

	mu       sync.Mutex
	renewed  bool
	deadline time.Duration // on the boot clock
	dated    time.Duration // when another command than HOLDS last set the deadline: the reply to an earlier HOLDS may be older
	ceiling  time.Duration // an earlier deadline, while a new lease is being set
	watched  time.Duration // the validity that renewal gives, as far as is known
	count    int64         // holds at the agent
	handles  int64         // open holds here
	// The last hold was certain when its release was sent.
	releasing bool
	atRisk    bool
	lost      *LostError
	watchers  []*watcher // of open holds
}

// held reports whether the hold is certain. Once it is uncertain, it remains so.
func (g *grant) held() bool { return g.err() == nil }

func (g *grant) err() error {
	g.mu.Lock()
	if g.lost == nil && boot() >= g.endsLocked() {
		return g.loseLocked("its deadline has passed")
	}
	defer g.mu.Unlock()
	if g.lost == nil {
		return nil
	}
	return g.lost
}

func (g *grant) lose(reason string) {
	g.mu.Lock()
	if g.lost == nil {
		_ = g.loseLocked(reason)
		return
	}
	g.mu.Unlock()
}

// apply records an event that the agent reports.
func (g *grant) apply(event push) {
	switch event[0] {
	case "lock-lost":
		g.update(func(g *grant) { g.count = 0 })
		g.lose(text(event[len(event)-1]))
	case "lock-jeopardy":
		g.warn(true)
	case "lock-safe":
		g.warn(false)
	}
}

// endUnlisted ends a grant that the agent does not list, without a loss if only the reply to its release was lost.
func (g *grant) endUnlisted() {
	released := false
	g.update(func(g *grant) { g.count, released = 0, g.releasing })
	if !released {
		g.lose("the agent does not hold it any more")
	}
}

// loseLocked ends the grant and unlocks the mutex before it notifies anyone.
func (g *grant) loseLocked(reason string) error {
	g.lost = &LostError{Name: g.name, Reason: reason}
	watchers, lost := slices.Clone(g.watchers), g.lost
	g.mu.Unlock()
	for _, watcher := range watchers {
		watcher.onLost(lost)
	}
	return lost
}

// watcher has the listeners of a hold.
type watcher struct {
	onLost func(error)
	onRisk []func() // guarded by the grant
}

// watch calls a function once when the grant is lost.
func (g *grant) watch(onLost func(error)) *watcher {
	w := &watcher{onLost: onLost}
	g.mu.Lock()
	g.watchers = append(g.watchers, w)
	lost := g.lost
	g.mu.Unlock()
	if lost != nil {
		onLost(lost)
	}
	return w
}

// forget ends the watch of a hold that is released. The grant outlives it if its owner reentered the lock.
func (g *grant) forget(w *watcher) {
	g.update(func(g *grant) {
		g.watchers = slices.DeleteFunc(g.watchers, func(other *watcher) bool { return other == w })
	})
}

func (g *grant) warn(atRisk bool) {
	g.mu.Lock()
	var listeners []func()
	if atRisk && !g.atRisk && g.lost == nil {
		for _, w := range g.watchers {
			listeners = append(listeners, w.onRisk...)
		}
	}
	g.atRisk = atRisk
	g.mu.Unlock()
	for _, listener := range listeners {
		go listener()
	}
}

// hasEnded reports whether a loss was noticed.
func (g *grant) hasEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lost != nil
}

// update changes fields under the mutex.
func (g *grant) update(change func(*grant)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

// surplus reports whether the agent has more holds than are open here.
func (g *grant) surplus() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count > g.handles
}

// until returns the time left until the deadline, and whether renewals move it, so that it must be read again.
func (g *grant) until() (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.endsLocked() - boot(), g.renewed && g.ceiling == forever
}

func (g *grant) endsLocked() time.Duration { return min(g.deadline, g.ceiling) }

// Hold is one acquisition of a lock. It ends with Release.
type Hold struct {
	session  *session
	grant    *grant
	ctx      context.Context
	end      context.CancelCauseFunc
	watcher  *watcher
	released atomic.Bool
	once     sync.Once
	err      error
}

func newHold(parent context.Context, s *session, g *grant) *Hold {
	h := &Hold{session: s, grant: g}
	ctx, cancel := context.WithCancelCause(parent)
	h.ctx, h.end = heldContext{Context: ctx, parent: parent, hold: h}, cancel
	h.watcher = g.watch(func(err error) { cancel(err) })
	return h
}

// heldContext notices that a deadline has passed even before any timer could run, as in a process that was stopped.
type heldContext struct {
	context.Context
	parent context.Context
	hold   *Hold
}

func (c heldContext) Err() error {
	if lost := c.hold.grant.err(); lost != nil {
		c.hold.end(lost) // Another goroutine may have found the loss, and not have ended the context yet.
	}
	_ = c.parent.Err() // It may be the context of another hold.
	return c.Context.Err()
}

// Name returns the lock's name.
func (h *Hold) Name() string { return h.grant.name }

// Kind returns the lock's kind.
func (h *Hold) Kind() Kind { return Kind(h.grant.kind) }

// Holder returns the holder's id in Redis, new with each grant.
func (h *Hold) Holder() string { return h.grant.holder }

// String describes the hold, as for a log.
func (h *Hold) String() string {
	state := "held"
	if h.Check() != nil {
		state = "not held"
	}
	return fmt.Sprintf("hold of %q (%s), %s", h.Name(), h.Kind(), state)
}

// Token returns the fencing token of a lock of kind Fenced, 0 for other kinds.
func (h *Hold) Token() int64 { return h.grant.token }

// Context returns a context that is cancelled when the hold is lost or released; context.Cause says which. Its parent is
// the context that was passed to Lock. Locks acquired with it belong to the same owner.
func (h *Hold) Context() context.Context { return h.ctx }

// Check returns a *LostError unless the hold is certain and not released. It costs no round trip.
func (h *Hold) Check() error {
	if err := h.grant.err(); err != nil {
		return err
	}
	if h.released.Load() {
		return &LostError{Name: h.Name(), Reason: "it was released"}
	}
	return nil
}

// Remaining returns the time for which the hold is certain, 0 once it is uncertain.
func (h *Hold) Remaining() time.Duration {
	if h.Check() != nil {
		return 0
	}
	left, _ := h.grant.until()
	return max(0, left)
}

// AtRisk reports whether renewals are failing while the hold is still valid. Start no new work meanwhile.
func (h *Hold) AtRisk() bool {
	h.grant.mu.Lock()
	defer h.grant.mu.Unlock()
	return h.grant.atRisk && h.grant.lost == nil && !h.released.Load()
}

// OnRisk calls the listener, in a new goroutine, whenever the hold becomes at risk.
func (h *Hold) OnRisk(listener func()) {
	h.grant.update(func(*grant) { h.watcher.onRisk = append(h.watcher.onRisk, listener) })
}

// Extend sets a fixed lease from now, at least 100 ms, and ends renewal. A lease of 0 returns the hold to renewal.
func (h *Hold) Extend(lease time.Duration) error {
	if err := h.Check(); err != nil {
		return err
	}
	return h.session.extend(h.grant, lease)
}

// Release cancels the hold's context and releases the hold. It returns a *LostError if the hold was lost before. Further
// calls return the same.
func (h *Hold) Release() error {
	h.once.Do(func() {
		h.released.Store(true)
		if lost := h.grant.err(); lost != nil {
			h.end(lost)
		}
		h.end(ErrReleased) // This ends waits with this context, for which the release would have to wait.
		h.grant.forget(h.watcher)
		h.err = h.session.unlock(h.grant)
		h.grant.mu.Lock()
		if h.grant.lost != nil {
			h.err = h.grant.lost
		}
		h.grant.mu.Unlock()
	})
	return h.err
}
