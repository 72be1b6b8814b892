// Drives this library for the conformance suite, by commands on standard input.
//
// Reads one command per line: `<tag> <task> <verb> <arguments>`. A task is a goroutine with a separate owner, which
// runs its commands one after another. Answers `<tag> <JSON>`; a loss and a warning are reported as `event <JSON>`. The
// verbs:
//
//	lock <handle> <name>[,<name>…] [wait=<ms>] [lease=<ms>] [kind=<kind>]
//	check <handle> | release <handle> | extend <handle> <ms>
//	part <handle>   releases the first of two; the handle is that of the other
//	graced <ms>     locks and releases with another agent object, of this grace
//	nest <handle> <name>   locks with the context of a hold, and releases
//	close           closes the agent object
//	many <count>   one lock for each of that many tasks; `unmany` releases them
//	cancel <tag>   cancels a command
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	lockscope "github.com/lockscope/lockscope/clients/go"
)

type answer = map[string]any

type command struct {
	tag, verb string
	words     []string
	ctx       context.Context
}

// held is a hold of one lock or of several.
type held interface {
	Context() context.Context
	Check() error
	Remaining() time.Duration
	Release() error
}

var (
	agent = lockscope.NewAgent(lockscope.Grace(millis(cmp.Or(os.Getenv("GRACE_MS"), "60000"))))

	mu      sync.Mutex
	holds   = map[string]held{}
	cancels = map[string]context.CancelFunc{}

	printing sync.Mutex

	errs      []string
	unmany    chan struct{}
	manyTasks sync.WaitGroup
)

func say(tag string, value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(tag, string(line))
}

func failure(err error) answer {
	var rejected *lockscope.RejectedError
	word := ""
	switch {
	case errors.Is(err, lockscope.ErrTimeout):
		word = "timeout"
	case errors.Is(err, lockscope.ErrLost):
		word = "lost"
	case errors.Is(err, lockscope.ErrUnavailable):
		word = "unavailable"
	case errors.Is(err, context.Canceled):
		word = "cancelled"
	case errors.Is(err, lockscope.ErrReleased):
		word = "released"
	case errors.As(err, &rejected):
		word = rejected.Code
	default:
		panic(err)
	}
	return answer{"error": word, "text": err.Error()}
}

func options(words []string) (opts []lockscope.LockOption) {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "wait":
			opts = append(opts, lockscope.Wait(millis(value)))
		case "lease":
			opts = append(opts, lockscope.Lease(millis(value)))
		case "kind":
			opts = append(opts, lockscope.OfKind(lockscope.Kind(value)))
		}
	}
	return opts
}

func millis(word string) time.Duration {
	count, err := strconv.ParseFloat(word, 64)
	if err != nil {
		panic(err)
	}
	nanos := count * float64(time.Millisecond)
	if nanos >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(nanos)
}

func members(h held) []*lockscope.Hold {
	if several, ok := h.(*lockscope.Holds); ok {
		return several.All()
	}
	return []*lockscope.Hold{h.(*lockscope.Hold)}
}

func describe(h held) answer {
	var token any
	var holders []string
	for _, hold := range members(h) {
		holders = append(holders, hold.Holder())
		if hold.Kind() == lockscope.Fenced {
			token = hold.Token()
		}
	}
	return answer{"token": token, "holder": strings.Join(holders, ","), "remaining": h.Remaining().Milliseconds()}
}

func find(handle string) held {
	mu.Lock()
	defer mu.Unlock()
	return holds[handle]
}

func acquire(c command) (held, error) {
	if names := strings.Split(c.words[1], ","); len(names) > 1 {
		return agent.LockAll(c.ctx, names, options(c.words[2:])...)
	}
	return agent.Lock(c.ctx, c.words[1], options(c.words[2:])...)
}

func lock(c command) answer {
	hold, err := acquire(c)
	if err != nil {
		return failure(err)
	}
	handle := c.words[0]
	mu.Lock()
	holds[handle] = hold
	mu.Unlock()
	context.AfterFunc(hold.Context(), func() {
		var lost *lockscope.LostError
		if errors.As(context.Cause(hold.Context()), &lost) {
			say("event", answer{"lost": handle, "reason": lost.Reason})
		}
	})
	for _, member := range members(hold) {
		member.OnRisk(func() { say("event", answer{"risk": handle}) })
	}
	return describe(hold)
}

func check(handle string) answer {
	hold := find(handle)
	// Asked first: the context must report a deadline that has passed, even if no timer has run.
	ended := hold.Context().Err() != nil
	err := hold.Check()
	if ended != (err != nil) {
		panic(fmt.Sprint("context and check disagree: ", ended, err))
	}
	if err != nil {
		return failure(err)
	}
	return describe(hold)
}

func many(count int) answer {
	unmany = make(chan struct{})
	var granted sync.WaitGroup
	granted.Add(count)
	for i := range count {
		manyTasks.Add(1)
		go func() {
			defer manyTasks.Done()
			hold, err := agent.Lock(context.Background(), fmt.Sprint("many:", i), lockscope.Wait(10*time.Minute))
			note(err)
			granted.Done()
			if err == nil {
				<-unmany
				note(hold.Release())
			}
		}()
	}
	granted.Wait()
	return noted()
}

func note(err error) {
	if err != nil {
		mu.Lock()
		errs = append(errs, err.Error())
		mu.Unlock()
	}
}

func noted() answer {
	mu.Lock()
	defer mu.Unlock()
	return answer{"errors": append([]string{}, errs...)}
}

func run(c command) answer {
	switch c.verb {
	case "lock":
		return lock(c)
	case "check":
		return check(c.words[0])
	case "release":
		if err := find(c.words[0]).Release(); err != nil {
			return failure(err)
		}
		return answer{}
	case "extend":
		if err := members(find(c.words[0]))[0].Extend(millis(c.words[1])); err != nil {
			return failure(err)
		}
		return describe(find(c.words[0]))
	case "part":
		both := members(find(c.words[0]))
		if err := both[0].Release(); err != nil {
			return failure(err)
		}
		mu.Lock()
		holds[c.words[0]] = both[1]
		mu.Unlock()
		return answer{}
	case "graced":
		other := lockscope.NewAgent(lockscope.Grace(millis(c.words[0])))
		defer other.Close()
		hold, err := other.Lock(c.ctx, "graced")
		if err == nil {
			err = hold.Release()
		}
		if err != nil {
			return failure(err)
		}
		return answer{}
	case "nest":
		hold, err := agent.Lock(find(c.words[0]).Context(), c.words[1])
		if err == nil {
			err = hold.Release()
		}
		if err != nil {
			return failure(err)
		}
		return answer{}
	case "close":
		agent.Close()
		return answer{}
	case "many":
		count, err := strconv.Atoi(c.words[0])
		if err != nil {
			panic(err)
		}
		return many(count)
	case "unmany":
		close(unmany)
		manyTasks.Wait()
		return noted()
	}
	panic("no such command: " + c.verb)
}

func main() {
	queues := map[string]chan command{}
	owners := map[string]context.Context{}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		tag, task, verb, words := words[0], words[1], words[2], words[3:]
		if verb == "cancel" {
			mu.Lock()
			cancels[words[0]]()
			mu.Unlock()
			say(tag, answer{})
			continue
		}
		if queues[task] == nil {
			queue := make(chan command, 100)
			queues[task], owners[task] = queue, lockscope.WithOwner(context.Background())
			go func() {
				for c := range queue {
					say(c.tag, run(c))
				}
			}()
		}
		ctx, cancel := context.WithCancel(owners[task])
		mu.Lock()
		cancels[tag] = cancel
		mu.Unlock()
		queues[task] <- command{tag, verb, words, ctx}
	}
	agent.Close()
}
