package lockscope

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"
)

func TestAnEndedContextMakesNoConnection(t *testing.T) {
	address := &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "agent.sock")}
	listener, err := net.ListenUnix("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cause := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if _, err := NewAgent(Socket(address.Name)).Lock(ctx, "orders:42"); !errors.Is(err, cause) {
		t.Fatal(err)
	}
	if err := listener.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Accept(); err == nil {
		t.Fatal("it connected")
	}
}

func TestAConnectionWithAnUnansweredCommandIsNotUsedAgain(t *testing.T) {
	socket, _ := net.Pipe()
	defer socket.Close()
	conn := &connection{socket: socket} // Its end is noticed by nobody else, since nothing reads it.
	session := newSession("", 0, func(*session) {})
	session.conn, session.closing = conn, true
	session.doubt(conn)
	if session.connected() != nil {
		t.Fatal("the next command would be sent on it")
	}
}

func TestAnEventThatComesBeforeItsGrantIsRecordedCounts(t *testing.T) {
	fields := func(holder string) map[string]any {
		until := int64(boot() + time.Hour)
		return map[string]any{"lock": "orders:42", "kind": "lock", "holder": holder, "holds": int64(1), "valid_until_ns": until}
	}
	session := newSession("", 0, func(*session) {})
	session.onPush(push{"lock-lost", "orders:42", "lock", "forced"})
	lost := session.granted(fields("1"), false)
	if err := lost.err(); err == nil || lost.surplus() {
		t.Fatalf("%v, surplus: %v", err, lost.surplus())
	}
	// The lost grant is still there.
	session.onPush(push{"lock-jeopardy", "orders:42", "lock", int64(1), int64(2)})
	again := session.granted(fields("2"), false)
	if err := again.err(); err != nil || !again.atRisk {
		t.Fatalf("%v, at risk: %v", err, again.atRisk)
	}
}
