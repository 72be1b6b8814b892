package lockscope

import (
	"context"
	"time"
)

// Holds are several locks that were acquired together. They end with Release.
type Holds struct {
	all []*Hold
	ctx context.Context
}

func newHolds(parent context.Context, s *session, grants []*grant) *Holds {
	ctx, end := context.WithCancelCause(parent)
	h := &Holds{}
	for _, g := range grants {
		hold := newHold(parent, s, g)
		h.all = append(h.all, hold)
		context.AfterFunc(hold.Context(), func() { end(context.Cause(hold.Context())) })
	}
	h.ctx = allHeldContext{Context: ctx, all: h.all, end: end}
	return h
}

// allHeldContext ends with the first of the holds, even if no timer could run.
type allHeldContext struct {
	context.Context
	all []*Hold
	end context.CancelCauseFunc
}

func (c allHeldContext) Err() error {
	for _, hold := range c.all {
		if hold.Context().Err() != nil {
			c.end(context.Cause(hold.Context()))
		}
	}
	return c.Context.Err()
}

// All returns the holds in the order in which their names were given.
func (h *Holds) All() []*Hold { return h.all }

// Context returns a context that is cancelled when the first of the holds is lost or released.
func (h *Holds) Context() context.Context { return h.ctx }

// Check returns a *LostError unless every hold is certain. It costs no round trip.
func (h *Holds) Check() error {
	for _, hold := range h.all {
		if err := hold.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Remaining returns the time for which all holds are certain, 0 once one is uncertain.
func (h *Holds) Remaining() time.Duration {
	left := forever
	for _, hold := range h.all {
		left = min(left, hold.Remaining())
	}
	return left
}

// Release releases all of them and returns the first error. Further calls return the same.
func (h *Holds) Release() error {
	var first error
	for _, hold := range h.all {
		if err := hold.Release(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
