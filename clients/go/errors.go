package lockscope

import (
	"errors"
	"fmt"
	"strings"
)

// Errors to compare with errors.Is.
var (
	// ErrTimeout reports that the lock could not be acquired in time.
	ErrTimeout = errors.New("lock not acquired in time")
	// ErrLost reports that the hold has ended although its owner did not release it. The error is a *LostError.
	ErrLost = errors.New("lock lost")
	// ErrReleased is the cause of a hold's context after its release.
	ErrReleased = errors.New("lock released")
	// ErrUnavailable reports that the agent cannot be reached, or that it cannot reach Redis.
	ErrUnavailable = errors.New("lockscope unavailable")
	// ErrDraining reports that the agent is shutting down. It is an ErrUnavailable too.
	ErrDraining = fmt.Errorf("%w: the agent is draining", ErrUnavailable)

	errClosed       = fmt.Errorf("%w: this Agent is closed", ErrUnavailable)
	errDisconnected = errors.New("connection to the agent lost")
)

// LostError names the lock that was lost, and the reason.
type LostError struct {
	Name, Reason string
}

func (e *LostError) Error() string { return fmt.Sprintf("lost %s: %s", e.Name, e.Reason) }

// Is reports whether the target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// RejectedError is an error reply of the agent, such as WRONGKIND, DENIED or DEADLOCK.
type RejectedError struct {
	Code, Message string
}

func (e *RejectedError) Error() string { return e.Message }

// replyError is an error reply as the agent sent it.
type replyError string

func (e replyError) Error() string { return string(e) }

func (e replyError) code() string {
	code, _, _ := strings.Cut(string(e), " ")
	return code
}

// code returns the first word of an error reply, empty for other errors.
func code(err error) string {
	var reply replyError
	if errors.As(err, &reply) {
		return reply.code()
	}
	return ""
}

// public returns the error that callers see.
func public(err error) error {
	switch code(err) {
	case "":
		if errors.Is(err, errDisconnected) && !errors.Is(err, ErrUnavailable) {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return err
	case "UNAVAILABLE":
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case "DRAINING":
		return fmt.Errorf("%w: %w", ErrDraining, err)
	default:
		return &RejectedError{Code: code(err), Message: err.Error()}
	}
}
