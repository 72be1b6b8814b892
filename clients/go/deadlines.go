package lockscope

import "time"

// arm sets the timer for the next deadline, or for the next reading of renewed ones unless one is in progress. The reading
// also proves that the agent has the session, from which its grace would count, or requests a grace that the agent could
// not give before.
func (s *session) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := forever
	for _, g := range s.grants {
		left, renewed := g.until()
		if renewed && !s.reading {
			left /= refreshDivisor
		}
		if s.grace > 0 && !s.reading {
			left = min(left, s.grace/refreshDivisor)
		}
		g.mu.Lock()
		if g.lost == nil {
			next = min(next, left)
		}
		g.mu.Unlock()
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if next != forever && !s.closing {
		s.timer = time.AfterFunc(max(next, shortestPause), s.tend)
	}
}

// tend ends holds whose deadline has passed, and reads the deadlines of the others.
func (s *session) tend() {
	live := false
	for _, g := range s.all() {
		live = g.held() || live
	}
	if live && s.connected() != nil && s.beginReading() {
		s.arm() // A deadline may pass before the agent answers.
		select {
		case s.turn <- struct{}{}:
			s.enter()
			s.refresh()
			s.requestGrace()
			<-s.turn
			s.leave()
		default: // The owner waits for another lock, and replies keep their order.
			s.refreshFromOutside()
		}
		s.mu.Lock()
		s.reading = false
		s.mu.Unlock()
	}
	s.arm()
}

// beginReading reports whether no other reading of the deadlines is in progress.
func (s *session) beginReading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	begins := !s.reading
	s.reading = true
	return begins
}

// refresh reads the deadlines on the session's connection. Only what has the turn records grants, so a grant that is not
// listed was recorded before.
func (s *session) refresh() {
	sent := boot()
	rows, err := s.call("HOLDS")
	if err != nil {
		return
	}
	listed := s.renew(rows, sent)
	for _, g := range s.all() {
		if !listed[g.holder] {
			g.endUnlisted()
		}
	}
}

func (s *session) refreshFromOutside() {
	s.mu.Lock()
	id, secret := s.id, s.secret
	s.mu.Unlock()
	sent := boot()
	if rows, err := callOnce(s.path, "HOLDS", id, secret); err == nil {
		s.prove(sent)
		s.renew(rows, sent)
	}
}

// renew records the deadlines in the reply to a HOLDS that was sent at the instant sent. It returns the holders that are
// listed.
func (s *session) renew(rows any, sent time.Duration) map[string]bool {
	listed := map[string]bool{}
	list, _ := rows.([]any)
	for _, row := range list {
		fields, _ := row.(map[string]any)
		listed[text(fields["holder"])] = true
		g := s.find(text(fields["lock"]), text(fields["kind"]))
		if g == nil || g.holder != text(fields["holder"]) || fields["valid_until_ns"] == nil || s.connected() == nil {
			continue
		}
		if g.held() { // A hold whose deadline has passed stays lost.
			g.update(func(g *grant) {
				// Redis may have set a shorter fixed lease than the agent knows.
				if until := validUntil(fields); sent >= g.dated && (g.renewed || until < g.deadline) {
					g.deadline = until
				}
			})
		}
	}
	return listed
}
