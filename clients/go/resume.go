package lockscope

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// connect connects, or resumes the session, and retries until the instant end.
func (s *session) connect(ctx context.Context, end time.Duration) error {
	for {
		if s.isClosing() {
			return errClosed
		}
		if s.connected() != nil {
			return nil
		}
		err := s.open(ctx, end)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch code(err) {
		case "GONE":
			s.end("the agent has ended the session")
			continue
		case "":
			err = fmt.Errorf("%w: no agent at %s: %w", ErrUnavailable, s.path, err)
		case "SESSION", "UNAVAILABLE", "DRAINING":
		default:
			return public(err)
		}
		if boot() >= end {
			return public(err)
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// open tries once to connect, until the context ends, but for at least leastLimit.
func (s *session) open(ctx context.Context, end time.Duration) error {
	conn, err := dial(s.path, s.onPush, s.onClose)
	if err != nil {
		return err
	}
	limit := min(replyLimit, max(end-boot(), leastLimit))
	overdue := time.AfterFunc(limit, func() { conn.socket.Close() })
	defer overdue.Stop()
	defer context.AfterFunc(ctx, func() { conn.socket.Close() })()
	s.mu.Lock()
	id, secret := s.id, s.secret
	clear(s.unclaimed)
	s.mu.Unlock()
	sent := boot()
	// With PROCESS the session's grace ends with this process, since nothing else knows its secret.
	var reply, holds any
	if id != "" {
		if reply, err = conn.call("RESUME", id, secret); err == nil {
			s.remember(reply) // The next command voids the old secret.
			s.warn(false)     // After it, the agent reports the holds that are at risk.
			if _, err = conn.call("SESSION", "PUSH", "on", "PROCESS", "on"); err == nil {
				holds, err = conn.call("HOLDS") // A loss before PUSH on is never reported.
			}
			if err != nil {
				s.warn(true)
			}
		}
	} else {
		given := s.grace
		reply, err = conn.call(s.gracedSession()...)
		if code(err) == "UNAVAILABLE" {
			// An agent without a journal grants locks but no grace.
			given = 0
			reply, err = conn.call("SESSION", "PUSH", "on")
		}
		s.mu.Lock()
		s.given = given
		s.mu.Unlock()
	}
	if err != nil {
		conn.socket.Close()
		if boot()-sent >= limit {
			return fmt.Errorf("%w: no reply within %v", err, limit.Round(time.Millisecond))
		}
		if reason, refused := conn.refusal(); refused && errors.Is(err, errDisconnected) {
			return fmt.Errorf("%w: %v", err, string(reason))
		}
		return err
	}
	s.remember(reply)
	s.mu.Lock()
	if s.closing {
		s.id = ""
		s.mu.Unlock()
		conn.quit()
		return errClosed
	}
	s.conn, s.proven, s.uncertain = conn, sent, false
	s.mu.Unlock()
	rows, _ := holds.([]any)
	s.takeOver(rows)
	if conn.isClosed() {
		s.onClose(conn)
	}
	return nil
}

func (s *session) gracedSession() []any {
	return []any{"SESSION", "GRACE", s.grace.Milliseconds(), "PUSH", "on", "PROCESS", "on"}
}

// requestGrace requests the grace that the agent could not give before.
func (s *session) requestGrace() {
	s.mu.Lock()
	graced := s.gracedLocked()
	s.mu.Unlock()
	if graced {
		return
	}
	if _, err := s.call(s.gracedSession()...); err == nil {
		s.mu.Lock()
		s.given = s.grace
		s.mu.Unlock()
	}
}

// remember notes the id and the secret with which the session can be resumed.
func (s *session) remember(reply any) {
	ticket, _ := reply.(map[string]any)
	s.mu.Lock()
	s.id, s.secret = text(ticket["id"]), text(ticket["secret"])
	s.mu.Unlock()
}

// takeOver compares the grants with the agent's list of this session's holds.
func (s *session) takeOver(rows []any) {
	listed := map[string]map[string]any{}
	for _, row := range rows {
		fields, _ := row.(map[string]any)
		listed[text(fields["holder"])] = fields
	}
	for _, g := range s.all() {
		row, found := listed[g.holder]
		delete(listed, g.holder)
		if !found {
			g.endUnlisted()
			continue
		}
		alive := g.held() // A hold whose deadline has passed stays lost.
		g.update(func(g *grant) {
			g.count = number(row["holds"])
			if alive {
				g.deadline, g.dated = validUntil(row), boot()
			}
		})
		s.settleLater(g)
	}
	for _, row := range listed {
		// It was granted by a LOCK whose reply was lost. If that call continues, it finds it here; otherwise it is released.
		s.settleLater(s.granted(row, false))
	}
	s.arm()
}

func (s *session) warn(atRisk bool) {
	for _, g := range s.all() {
		g.warn(atRisk)
	}
}

// settleLater releases a surplus after the running command, which may need it.
func (s *session) settleLater(g *grant) {
	if g.surplus() {
		s.background(func() { _ = s.settle(g) }) // Without a connection, resuming the session settles it.
	}
}

func (s *session) onPush(event push) {
	if len(event) < 3 {
		return
	}
	place := key{text(event[1]), text(event[2])}
	s.mu.Lock()
	g := s.grants[place]
	if g == nil || g.hasEnded() {
		s.unclaimed[place] = event
	}
	s.mu.Unlock()
	if g != nil {
		g.apply(event)
	}
	if event[0] == "lock-jeopardy" || event[0] == "lock-safe" { // The deadline may have changed, even to an earlier one.
		go s.tend()
	}
}

func (s *session) onClose(conn *connection) {
	s.mu.Lock()
	if s.conn != conn {
		s.mu.Unlock()
		return
	}
	s.conn = nil
	s.limitLocked() // Before another connection can be made, to whose grants this limit does not apply.
	if !s.holdsLocked() && s.users == 0 {
		s.id = ""
	}
	s.mu.Unlock()
	s.recover()
}

// limit limits the holds of a session without a connection to the time for which the agent certainly keeps it.
func (s *session) limit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		s.limitLocked()
	}
}

func (s *session) limitLocked() {
	for _, g := range s.grants {
		g.update(func(g *grant) { g.deadline = min(g.deadline, s.proven+s.given) })
		g.warn(true)
	}
}

// recover resumes the session in the background for as long as the agent may have holds of it.
func (s *session) recover() {
	s.mu.Lock()
	needed := s.holdsLocked() && !s.closing && !s.recovering
	s.recovering = s.recovering || needed
	s.mu.Unlock()
	if !needed {
		return
	}
	s.background(func() {
		// A call may have failed since, and left the session uncertain.
		end := boot()
		for _, g := range s.all() {
			left, _ := g.until()
			end = max(end, boot()+left)
		}
		s.mu.Lock()
		s.recovering = false
		if s.uncertain {
			end = max(end, boot()+s.given)
		}
		needed := s.conn == nil && s.holdsLocked()
		s.mu.Unlock()
		if !needed {
			return
		}
		if err := s.connect(context.Background(), end); err != nil && !s.isClosing() {
			s.end(err.Error())
		}
	})
}

// end gives up a session that cannot be resumed.
func (s *session) end(reason string) {
	s.mu.Lock()
	s.id, s.uncertain = "", false
	s.mu.Unlock()
	for _, g := range s.all() {
		g.update(func(g *grant) { g.count = 0 })
		g.lose(reason)
	}
}

// doubt notes that a command went unanswered, and closes its connection. No later command is sent on it: such a command
// would go unanswered too, and then its call would take a grant of this one for its own.
func (s *session) doubt(conn *connection) {
	s.mu.Lock()
	s.uncertain = true
	s.mu.Unlock()
	conn.socket.Close()
	s.onClose(conn)
	s.limit() // A grant may have become known only after the end of its connection.
	if s.connected() == nil {
		s.recover()
	}
}
