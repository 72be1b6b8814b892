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
