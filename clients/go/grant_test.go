package lockscope

import (
	"context"
	"errors"
	"testing"
)

// A goroutine may find a loss, and be interrupted before it ends the context of the hold.
func TestALostHoldHasAnEndedContext(t *testing.T) {
	g := &grant{name: "orders:42", deadline: forever, ceiling: forever}
	found, proceed := make(chan struct{}), make(chan struct{})
	g.watch(func(error) {
		close(found)
		<-proceed
	})
	hold := newHold(context.Background(), nil, g)
	go g.lose("its agent is gone")
	<-found
	defer close(proceed)
	if hold.Check() == nil || hold.Context().Err() == nil {
		t.Fatalf("check: %v, context: %v", hold.Check(), hold.Context().Err())
	}
	var lost *LostError
	if !errors.As(context.Cause(hold.Context()), &lost) || lost.Reason != "its agent is gone" {
		t.Fatalf("the context ended for another reason: %v", context.Cause(hold.Context()))
	}
}
