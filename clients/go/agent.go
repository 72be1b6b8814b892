// Package lockscope acquires Redisson-compatible locks through the Lockscope agent of this host.
//
//	agent := lockscope.NewAgent()
//	hold, err := agent.Lock(ctx, "orders:42", lockscope.Wait(time.Minute))
//	if err != nil {
//		return err
//	}
//	defer hold.Release()
//	return work(hold.Context()) // cancelled when the hold is lost
package lockscope

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	defaultSocket = "/run/lockscope/agent.sock"
	defaultGrace  = time.Minute
	// longestWait is the longest wait that the agent limits: a year.
	longestWait = 365 * 24 * time.Hour
	// spareSessions is the number of connections without a hold that are kept for the next owner.
	spareSessions = 8
)

// Kind is a kind of lock.
type Kind string

// The kinds of locks.
const (
	Plain  Kind = "lock"
	Fair   Kind = "fair"
	Read   Kind = "read"
	Write  Kind = "write"
	Fenced Kind = "fenced"
	Red    Kind = "red"
)

type options struct {
	several bool
	kind    Kind
	limited bool
	wait    time.Duration
	leased  bool
	lease   time.Duration
}

// LockOption is an option of Agent.Lock.
type LockOption func(*options)

// Wait limits the wait for the lock. Without it, or with more than a year, Lock waits for as long as its context allows.
func Wait(limit time.Duration) LockOption {
	return func(o *options) { o.limited, o.wait = limit <= longestWait, max(0, limit) }
}

// OfKind acquires a lock of this kind instead of a plain one.
func OfKind(kind Kind) LockOption {
	// As in the agent's replies.
	return func(o *options) { o.kind = Kind(strings.ToLower(string(kind))) }
}

// Lease gives the hold a fixed lease, which nothing renews.
func Lease(lease time.Duration) LockOption {
	return func(o *options) { o.leased, o.lease = true, lease }
}

// Agent is the agent of this host. It is safe for concurrent use.
type Agent struct {
	path  string
	grace time.Duration

	mu       sync.Mutex
	sessions map[*session]struct{}
	spare    []*session
	closed   bool
}

// AgentOption is an option of NewAgent.
type AgentOption func(*Agent)

// Socket sets the path of the agent's socket.
func Socket(path string) AgentOption { return func(a *Agent) { a.path = path } }

// Grace sets how long holds outlive a lost connection or a restart of the agent, a minute by default; 0 disables that.
func Grace(grace time.Duration) AgentOption { return func(a *Agent) { a.grace = grace } }

// NewAgent returns the agent behind LOCKSCOPE_SOCKET, else /run/lockscope/agent.sock, else $XDG_RUNTIME_DIR/lockscope/agent.sock.
// It connects with the first lock.
func NewAgent(opts ...AgentOption) *Agent {
	a := &Agent{path: usualSocket(), grace: defaultGrace, sessions: map[*session]struct{}{}}
	for _, set := range opts {
		set(a)
	}
	return a
}

func usualSocket() string {
	if path := os.Getenv("LOCKSCOPE_SOCKET"); path != "" {
		return path
	}
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); runtime != "" {
		own := filepath.Join(runtime, "lockscope", "agent.sock")
		_, system := os.Stat(defaultSocket)
		if _, err := os.Stat(own); err == nil && system != nil {
			return own
		}
	}
	return defaultSocket
}

// owner is an owner of holds. Owners exclude each other, and each can reenter its own locks.
type owner struct {
	mu      sync.Mutex
	session map[*Agent]*session
}

type ownerKey struct{}

// WithOwner returns a context that carries a new owner. Without one, each call of Lock is made by a new owner. The
// context of a hold carries the hold's owner.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, &owner{session: map[*Agent]*session{}})
}

// Lock acquires a lock, or reenters it if the context carries the owner of a hold. It fails with ErrTimeout when the wait
// is over, with the context's cause when the context ends, with ErrUnavailable when the agent or Redis cannot be reached,
// and with a *RejectedError when the agent refuses.
func (a *Agent) Lock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	ctx, s, grants, err := a.acquire(ctx, []string{name}, options{kind: Plain}, opts)
	if err != nil {
		return nil, err
	}
	return newHold(ctx, s, grants[0]), nil
}

// LockAll acquires all or none of up to 64 locks, each named once. Calls of LockAll never deadlock with each other,
// whatever the order of the names. It fails with the errors of Lock.
func (a *Agent) LockAll(ctx context.Context, names []string, opts ...LockOption) (*Holds, error) {
	ctx, s, grants, err := a.acquire(ctx, names, options{kind: Plain, several: true}, opts)
	if err != nil {
		return nil, err
	}
	return newHolds(ctx, s, grants), nil
}

// acquire acquires locks for the context's owner, or for a new one that the returned context carries.
func (a *Agent) acquire(
	ctx context.Context, names []string, o options, opts []LockOption,
) (context.Context, *session, []*grant, error) {
	for _, set := range opts {
		set(&o)
	}
	own, ok := ctx.Value(ownerKey{}).(*owner)
	if !ok {
		ctx = WithOwner(ctx)
		own, _ = ctx.Value(ownerKey{}).(*owner)
	}
	s, err := a.sessionOf(own)
	if err != nil {
		return nil, nil, nil, err
	}
	defer s.leave()
	grants, err := s.lock(ctx, names, o)
	return ctx, s, grants, err
}

// TryLock acquires a lock if it is free, and otherwise fails with ErrTimeout.
func (a *Agent) TryLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return a.Lock(ctx, name, slices.Concat(opts, []LockOption{Wait(0)})...)
}

// Close releases everything and closes the connections. Waits and later calls fail with ErrUnavailable, and holds that are
// still open are lost.
func (a *Agent) Close() {
	a.mu.Lock()
	a.closed = true
	sessions := a.sessions
	a.sessions, a.spare = map[*session]struct{}{}, nil
	a.mu.Unlock()
	var all sync.WaitGroup
	for s := range sessions {
		all.Add(1)
		go func() {
			defer all.Done()
			s.close()
		}()
	}
	all.Wait()
}

// sessionOf enters and returns the owner's session, which the caller must leave.
func (a *Agent) sessionOf(own *owner) (*session, error) {
	own.mu.Lock()
	defer own.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errClosed
	}
	s := own.session[a]
	if s == nil || s.owner != own {
		if last := len(a.spare) - 1; last >= 0 {
			s, a.spare = a.spare[last], a.spare[:last]
		} else {
			s = newSession(a.path, a.grace, a.onIdle)
		}
		s.owner, own.session[a] = own, s
		a.sessions[s] = struct{}{}
	}
	s.enter()
	return s, nil
}

func (a *Agent) onIdle(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.mu.Lock()
	idle, graced := s.idleLocked(), s.gracedLocked()
	s.mu.Unlock()
	if !idle || s.owner == nil {
		return
	}
	s.owner = nil
	if len(a.spare) < spareSessions && graced && !a.closed {
		a.spare = append(a.spare, s)
		return
	}
	delete(a.sessions, s)
	go s.close()
}
