package lockscope

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	retryPause = 100 * time.Millisecond
	// leastLimit is the shortest time limit for opening a connection, however short the wait is: the agent may take this
	// long to answer.
	leastLimit = 2 * time.Second
	// answerMargin is the time after its limit within which the reply to a wait must arrive. Redis may leave the last
	// attempt unanswered for two seconds, and then the release of what it acquired for another two.
	answerMargin = 5 * time.Second
	// connectLimit bounds the wait for an agent that is not running.
	connectLimit = 30 * time.Second
	// Renewed deadlines are read again after a third of the remaining validity.
	refreshDivisor = 3
	shortestPause  = 50 * time.Millisecond
	// closeLimit is the time for which a close waits for the agent.
	closeLimit = time.Second
	forever    = time.Duration(1<<63 - 1)
)

type key struct{ name, kind string }

// session is one owner's connection to the agent, and the state that outlives it. Replies on a connection keep the
// order of its commands, so owners that wait do not share a connection.
type session struct {
	path   string
	grace  time.Duration
	onIdle func(*session)
	turn   chan struct{} // holds a value while a command runs
	owner  *owner        // guarded by the agent

	mu         sync.Mutex
	conn       *connection
	id, secret string
	given      time.Duration // the grace that the agent gives this session
	proven     time.Duration // the last instant at which the agent certainly had this session
	uncertain  bool          // a command went unanswered: the agent may have holds unknown here
	recovering bool          // a recovery waits for the turn
	grants     map[key]*grant
	unclaimed  map[key]push // the last event of each lock that has no grant here: its grant may be recorded only later
	users      int
	timer      *time.Timer
	reading    bool // the deadlines are being read
	closing    bool
	waiting    bool // the command that has the turn waits for a lock
}

func newSession(path string, grace time.Duration, onIdle func(*session)) *session {
	return &session{
		path: path, grace: grace, onIdle: onIdle, turn: make(chan struct{}, 1),
		grants: map[key]*grant{}, unclaimed: map[key]push{},
	}
}

func (s *session) enter() {
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
}

func (s *session) leave() {
	s.mu.Lock()
	s.users--
	idle := s.idleLocked()
	s.mu.Unlock()
	if idle {
		s.onIdle(s)
	}
}

func (s *session) idleLocked() bool { return s.users == 0 && !s.holdsLocked() }

// gracedLocked reports whether the agent gives this session the grace that it wants.
func (s *session) gracedLocked() bool { return s.given == s.grace }

// holdsLocked reports whether the agent may have holds of this session.
func (s *session) holdsLocked() bool { return len(s.grants) > 0 || s.uncertain }

// background runs work in the background, as a user of the session, once it has the turn.
func (s *session) background(work func()) {
	s.enter()
	go func() {
		defer s.leave()
		s.turn <- struct{}{}
		defer func() { <-s.turn }()
		work()
	}()
}

func (s *session) connected() *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

func (s *session) find(name, kind string) *grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grants[key{name, kind}]
}

func (s *session) all() []*grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants := make([]*grant, 0, len(s.grants))
	for _, g := range s.grants {
		grants = append(grants, g)
	}
	return grants
}

// lock acquires the locks, or reenters them. The caller must have entered the session, and must leave it afterwards.
func (s *session) lock(ctx context.Context, names []string, o options) ([]*grant, error) {
	end := forever
	if o.limited {
		end = boot() + o.wait
	}
	if err := s.takeTurn(ctx, end, names); err != nil {
		return nil, err
	}
	withdrawn, unanswered := false, false
	defer func() {
		if !withdrawn {
			<-s.turn
		}
	}()
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := s.connect(ctx, min(end, boot()+connectLimit)); err != nil {
			return nil, err
		}
		known := s.known(names, o.kind)
		mayBeGranted := unanswered && !o.several // By a command whose reply was lost.
		cleared, err := s.clear(known, !mayBeGranted)
		if err != nil {
			return nil, err
		}
		if cleared {
			continue
		}
		if mayBeGranted && len(known) > 0 && known[0].surplus() {
			return s.handOut(known, o), nil
		}
		conn := s.connected()
		if conn == nil {
			continue
		}
		words := lockWords(names, o)
		var overdue <-chan time.Time
		if o.limited {
			left := max(0, end-boot())
			words = append(words, "WAIT", left.Milliseconds())
			limit := time.NewTimer(left + answerMargin)
			defer limit.Stop()
			overdue = limit.C
		}
		s.mu.Lock()
		words = append(words, "IN", s.id)
		clear(s.unclaimed) // They tell of earlier grants.
		s.mu.Unlock()
		sent := boot()
		p := conn.send(words...)
		s.setWaiting(true)
		select {
		case <-p.done:
			s.setWaiting(false)
		case <-ctx.Done():
			s.setWaiting(false)
			withdrawn = true
			s.enter()
			go func() {
				defer s.leave()
				defer func() { <-s.turn }()
				s.withdraw(conn, p, o, sent)
			}()
			return nil, context.Cause(ctx)
		case <-overdue:
			s.setWaiting(false)
			s.doubt(conn)
			return nil, fmt.Errorf("%w: could not acquire %s: no reply from the agent", ErrUnavailable, list(names))
		}
		switch {
		case errors.Is(p.err, errDisconnected):
			s.doubt(conn)
			unanswered = true
		case code(p.err) == "DRAINING" && boot() < end:
			if err := pause(ctx); err != nil {
				return nil, err
			}
			if len(s.all()) > 0 { // A draining agent accepts no other connection to read the deadlines.
				s.refresh()
			}
		case code(p.err) == "LOST" && len(known) == 0:
			// The lock was granted and lost before the agent could report it: the wait continues.
		case code(p.err) == "LOST":
			return nil, &LostError{Name: list(names), Reason: p.err.Error()}
		case p.err != nil:
			return nil, public(p.err)
		case p.value == nil && s.isClosing():
			return nil, errClosed
		case p.value == nil:
			return nil, fmt.Errorf("%w: %s within %v", ErrTimeout, list(names), o.wait)
		default:
			granted := s.grantedAll(p.value, o, sent)
			switch current := s.connected(); {
			case current != conn:
				// The connection ended before these grants were known: resuming the session settles them.
				if current == nil {
					s.doubt(conn)
				}
				unanswered = true
			case allHeld(granted):
				return s.handOut(granted, o), nil
			}
		}
	}
}

// takeTurn waits for the session's current command to end, until the context ends or the instant end. A command that
// does not wait for a lock is given at least leastLimit.
func (s *session) takeTurn(ctx context.Context, end time.Duration, names []string) error {
	var overdue <-chan time.Time
	if end != forever {
		left := max(0, end-boot())
		if !s.isWaiting() {
			left = max(left, leastLimit)
		}
		limit := time.NewTimer(left)
		defer limit.Stop()
		overdue = limit.C
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-overdue:
		if s.isWaiting() {
			return fmt.Errorf("%w: %s: its owner waits for another lock", ErrTimeout, list(names))
		}
		return fmt.Errorf("%w: could not acquire %s: no reply from the agent to an earlier command", ErrUnavailable, list(names))
	}
}

func (s *session) isWaiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

func (s *session) setWaiting(waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = waiting
}

func lockWords(names []string, o options) []any {
	words := []any{"LOCK"}
	if o.several {
		words = []any{"MLOCK", len(names)}
	}
	for _, name := range names {
		words = append(words, name)
	}
	words = append(words, "KIND", o.kind)
	if o.leased {
		words = append(words, "LEASE", o.lease.Milliseconds())
	}
	return words
}

func list(names []string) string { return strings.Join(names, ", ") }

func allHeld(grants []*grant) bool {
	held := true
	for _, g := range grants {
		held = g.held() && held
	}
	return held
}

// known returns the owner's existing grants of these locks.
func (s *session) known(names []string, kind Kind) (grants []*grant) {
	for _, name := range names {
		if g := s.find(name, string(kind)); g != nil {
			grants = append(grants, g)
		}
	}
	return grants
}

// clear releases grants that arrived after their deadline and, if so requested, the surplus of earlier commands. It
// reports whether there were any, and fails if an open hold was lost.
func (s *session) clear(known []*grant, surplus bool) (cleared bool, err error) {
	for _, g := range known {
		lost := g.err()
		if lost == nil && !(surplus && g.surplus()) {
			continue
		}
		if err := s.settle(g); err != nil {
			return false, err
		}
		if lost != nil && s.find(g.name, g.kind) == g {
			return false, lost
		}
		cleared = true
	}
	return cleared, nil
}

// handOut counts one more open hold of each grant. The agent may have granted it to a call whose reply was lost.
func (s *session) handOut(grants []*grant, o options) []*grant {
	for _, g := range grants {
		g.update(func(g *grant) {
			g.renewed = !o.leased || (g.renewed && g.handles > 0)
			g.handles++
		})
	}
	s.arm()
	return grants
}

func (s *session) grantedAll(reply any, o options, sent time.Duration) (grants []*grant) {
	rows := []any{reply}
	if o.several {
		rows, _ = reply.([]any)
	}
	for _, row := range rows {
		fields, _ := row.(map[string]any)
		s.prove(sent + validity(fields["waited_ms"]))
		g := s.granted(fields, o.leased)
		if !o.leased && number(fields["holds"]) == 1 { // A reentry may find a fixed lease.
			g.update(func(g *grant) { g.watched = g.deadline - boot() })
		}
		grants = append(grants, g)
	}
	return grants
}

func pause(ctx context.Context) error {
	timer := time.NewTimer(retryPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unlock closes and releases a hold.
func (s *session) unlock(g *grant) error {
	s.enter()
	defer s.leave()
	g.update(func(g *grant) { g.handles-- })
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.settle(g)
}

func (s *session) extend(g *grant, lease time.Duration) error {
	millis := lease.Milliseconds()
	if lease != 0 && millis == 0 { // The agent would understand it as a return to renewal.
		return public(replyError("LIMIT a lease must be at least 100 ms"))
	}
	s.enter()
	defer s.leave()
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if err := s.connect(context.Background(), boot()+replyLimit); err != nil {
		return err
	}
	sent := boot()
	g.update(func(g *grant) { // The agent may end it then.
		g.ceiling = sent + g.watched
		if millis > 0 {
			g.ceiling = sent + min(lease.Truncate(time.Millisecond), forever-sent)
		}
	})
	s.arm()
	valid, err := s.call("EXTEND", g.name, millis, "KIND", g.kind)
	g.held() // A hold whose deadline has passed stays lost.
	g.update(func(g *grant) {
		// Redis may have set the lease although it has not answered.
		if errors.Is(err, errDisconnected) || code(err) == "UNAVAILABLE" {
			g.deadline = g.endsLocked()
		}
		if err == nil {
			g.renewed, g.deadline = millis == 0, sent+validity(valid)
		}
		g.ceiling, g.dated = forever, boot()
	})
	s.limit() // The connection may have ended together with this reply.
	s.arm()
	if c := code(err); c == "LOST" || c == "NOTHELD" {
		g.lose(err.Error())
		return g.err()
	}
	if err != nil {
		return public(err)
	}
	return g.err()
}

// close ends the session and all its holds.
func (s *session) close() {
	s.mu.Lock()
	s.closing = true
	conn, id, secret, held := s.conn, s.id, s.secret, s.holdsLocked()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	for _, g := range s.all() {
		g.lose("the agent object was closed")
	}
	if conn != nil {
		if len(s.turn) > 0 { // The agent reads QUIT only after a wait in progress has ended.
			go func() { _, _ = callOnce(s.path, "CANCEL", id, secret) }()
		}
		conn.quit()
	} else if held {
		s.endAtAgent()
	}
}

// endAtAgent ends a session without a connection at the agent, on a new one. With a slow agent it continues in the background.
func (s *session) endAtAgent() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.turn <- struct{}{} // A connection that was being made has ended the session.
		defer func() { <-s.turn }()
		s.mu.Lock()
		ended := s.id == ""
		s.mu.Unlock()
		if !ended {
			_ = s.open(context.Background(), boot())
		}
	}()
	select {
	case <-done:
	case <-time.After(closeLimit):
	}
}

func (s *session) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// granted records a grant or a reentry that the agent reports.
func (s *session) granted(fields map[string]any, fixed bool) *grant {
	name, kind, holder := text(fields["lock"]), text(fields["kind"]), text(fields["holder"])
	g := s.find(name, kind)
	var event push
	if g == nil || g.holder != holder {
		if g != nil {
			g.lose("it was granted again")
		}
		g = &grant{name: name, kind: kind, holder: holder, token: number(fields["token"]), renewed: !fixed}
		g.ceiling, g.watched = forever, replyLimit
		s.mu.Lock()
		s.grants[key{name, kind}] = g
		event = s.unclaimed[key{name, kind}]
		delete(s.unclaimed, key{name, kind})
		closing := s.closing
		s.mu.Unlock()
		if closing {
			g.lose("the agent object was closed")
		}
	}
	g.update(func(g *grant) {
		g.count = number(fields["holds"])
		g.renewed = g.renewed || !fixed
		g.deadline, g.dated = max(g.deadline, validUntil(fields)), boot()
	})
	if event != nil {
		g.apply(event)
	}
	return g
}

// settle releases the holds that the agent has beyond those open here.
func (s *session) settle(g *grant) error {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.handles == 0 && s.grants[key{g.name, g.kind}] == g {
			delete(s.grants, key{g.name, g.kind})
		}
	}()
	for g.surplus() {
		if s.connected() == nil {
			left, _ := g.until()
			if left <= 0 {
				return nil
			}
			if err := s.connect(context.Background(), boot()+left); err != nil {
				return err
			}
			continue
		}
		certain := g.held()
		g.update(func(g *grant) { g.releasing = certain && g.handles == 0 })
		left, err := s.call("UNLOCK", g.name, "KIND", g.kind)
		switch code(err) {
		case "LOST", "NOTHELD":
			g.update(func(g *grant) { g.count = 0 })
			g.lose(err.Error())
		case "UNAVAILABLE": // This owner no longer holds it: the agent keeps trying to release it.
			g.update(func(g *grant) { g.count-- })
		default:
			if err != nil && !errors.Is(err, errDisconnected) {
				return public(err)
			}
			if err == nil {
				g.update(func(g *grant) { g.count = number(left) })
				if _, renewed := g.until(); number(left) > 0 && g.kind == string(Read) && !renewed {
					s.refresh() // The lease of a reader's entry ends with it.
					s.arm()
				}
			}
		}
	}
	return nil
}

// withdraw ends an abandoned wait, and releases what it was granted.
func (s *session) withdraw(conn *connection, p *pending, o options, sent time.Duration) {
	s.mu.Lock()
	id, secret := s.id, s.secret
	s.mu.Unlock()
	_, err := callOnce(s.path, "CANCEL", id, secret)
	if err == nil {
		select {
		case <-p.done:
			err = p.err
		case <-time.After(replyLimit):
			err = errDisconnected
		}
	}
	if err != nil {
		if code(err) == "" {
			s.doubt(conn)
		}
		return
	}
	if p.value == nil {
		return
	}
	for _, g := range s.grantedAll(p.value, o, sent) {
		_ = s.settle(g) // Without a connection, resuming the session settles it.
	}
}

func (s *session) prove(sent time.Duration) {
	s.mu.Lock()
	s.proven = max(s.proven, sent)
	s.mu.Unlock()
}

// call runs a command in this session that does not wait for a lock.
func (s *session) call(words ...any) (any, error) {
	s.mu.Lock()
	conn, id := s.conn, s.id
	s.mu.Unlock()
	if conn == nil {
		return nil, errDisconnected
	}
	if words[0] != "HOLDS" && words[0] != "SESSION" {
		words = append(words, "IN", id)
	}
	sent := boot()
	value, err := conn.call(words...)
	if errors.Is(err, errDisconnected) {
		s.doubt(conn)
	} else {
		s.prove(sent)
	}
	return value, err
}
