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
