package lockscope

import (
	"net"
	"runtime"
	"testing"
	"time"
)

func TestAGrantThatBecomesKnownAfterItsConnectionIsLimitedToTheGrace(t *testing.T) {
	socket, _ := net.Pipe()
	session := newSession("", time.Minute, func(*session) {})
	session.closing, session.given, session.proven = true, time.Minute, boot()
	until := int64(boot() + time.Hour)
	row := map[string]any{"lock": "orders:42", "kind": "lock", "holder": "h", "holds": int64(1), "valid_until_ns": until}
	g := session.granted(row, true)
	session.doubt(&connection{socket: socket})
	if left, _ := g.until(); left > time.Minute {
		t.Fatal(left)
	}
}

func TestTheEndOfAConnectionLimitsNoGrantOfTheNextOne(t *testing.T) {
	session := newSession("", time.Minute, func(*session) {})
	session.closing, session.conn = true, &connection{}
	g := &grant{}
	session.grants[key{}] = g
	g.mu.Lock()
	go session.onClose(session.conn)
	// The next connection can be made once the session has the lock again.
	for limiting := false; !limiting; runtime.Gosched() {
		limiting = !session.mu.TryLock()
		if !limiting {
			ended := session.conn == nil
			session.mu.Unlock()
			if ended {
				t.Fatal("another connection could be made before the holds of this one are limited")
			}
		}
	}
	g.mu.Unlock()
}
