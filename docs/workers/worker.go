// A worker that keeps its lock across broken connections, agent restarts and its own restarts.
// LOCKSCOPE_SOCKET is the agent's socket, WORKER_TICKET the file with its session's id and secret.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	lockName = "orders:42"
	grace    = time.Minute
	exitLost = 76
)

var (
	ctx     = context.Background()
	socket  = setting("LOCKSCOPE_SOCKET", "/run/lockscope/agent.sock")
	tickets = setting("WORKER_TICKET", "worker.ticket")
	// The connection broke and the session was resumed on a new one: check the holds and repeat the command.
	errResumed = errors.New("resumed")
)

func setting(name, usual string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return usual
}

// Exits at once: no goroutine may continue to work under the lock.
func lost(why any) {
	fmt.Println("lost:", why)
	os.Exit(exitLost)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Returns the code of an error reply, or an empty string if there was no reply.
func code(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) {
		return strings.Fields(reply.Error())[0]
	}
	return ""
}

func connect() *redis.Conn {
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, ReadTimeout: -1, MaxRetries: -1})
	return client.Conn()
}

type session struct {
	mutex      sync.Mutex
	agent      *redis.Conn
	id, secret string
	holds      map[string]int64 // hold counts of the locks
	generation int
	atRisk     bool       // a hold is at risk (jeopardy)
	calm       *sync.Cond // tells when it is no longer at risk
}

func begin() *session {
	s := &session{holds: map[string]int64{}}
	s.calm = sync.NewCond(&s.mutex)
	if text, err := os.ReadFile(tickets); err == nil {
		fmt.Sscan(string(text), &s.id, &s.secret)
	}
	s.recover(0, true)
	go s.listen()
	return s
}

// Resumes the session on a new connection, unless that has been done or the old connection is alive.
func (s *session) recover(generation int, broken bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for deadline := time.Now().Add(grace); s.generation == generation; time.Sleep(100 * time.Millisecond) {
		agent := connect()
		command := []any{"SESSION", "GRACE", grace.Milliseconds()}
		if s.id != "" {
			command = []any{"RESUME", s.id, s.secret}
		}
		reply, err := agent.Do(ctx, command...).Result()
		if err == nil {
			if s.id != "" {
				fmt.Println("resumed")
			}
			s.goOn(agent, reply.(map[any]any))
			return
		}
		agent.Close()
		switch code(err) {
		case "GONE":
			if s.holdsAny() {
				lost("the session has ended")
			}
			s.id = ""
		case "SESSION", "UNAVAILABLE", "":
			if code(err) == "SESSION" && !broken {
				return
			}
			if time.Now().After(deadline) {
				lost(err)
			}
		default:
			panic(err)
		}
	}
}

func (s *session) goOn(agent *redis.Conn, reply map[any]any) {
	s.id, s.secret = reply["id"].(string), reply["secret"].(string)
	must(os.WriteFile(tickets+".new", []byte(s.id+" "+s.secret), 0o600))
	must(os.Rename(tickets+".new", tickets)) // a reader never finds half a ticket
	now := map[string]int64{}
	if rows, ok := reply["holds"].([]any); ok {
		for _, row := range rows {
			hold := row.(map[any]any)
			now[hold["lock"].(string)] = hold["holds"].(int64)
		}
	}
	for name, count := range s.holds {
		if count > 0 && now[name] == 0 {
			lost("it was not there any more")
		}
	}
	s.agent, s.holds = agent, now
	s.generation++
	s.atRisk = false // another agent sends no `safe` for its predecessor's `jeopardy`
	s.calm.Broadcast()
}

func (s *session) call(words ...any) (any, error) {
	s.mutex.Lock()
	agent, generation := s.agent, s.generation
	s.mutex.Unlock()
	reply, err := agent.Do(ctx, words...).Result()
	if err != nil && code(err) == "" {
		s.recover(generation, true)
		return nil, errResumed
	}
	return reply, err
}

func (s *session) holdsAny() bool {
	for _, count := range s.holds {
		if count > 0 {
			return true
		}
	}
	return false
}

func (s *session) held(name string) int64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.holds[name]
}

// Returns the session's id: `IN` with it makes a command fail instead of running in another session.
func (s *session) name() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.id
}

func (s *session) set(name string, count int64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.holds[name] = count
}

func (s *session) setAtRisk(atRisk bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.atRisk = atRisk
	s.calm.Broadcast()
}

func (s *session) waitForCalm() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.atRisk {
		s.calm.Wait()
	}
}

// Acquires or reenters the lock. False if it could not be acquired in time.
func (s *session) lock(name string, wait time.Duration) bool {
	for wanted := s.held(name) + 1; s.held(name) < wanted; {
		reply, err := s.call("LOCK", name, "WAIT", wait.Milliseconds(), "IN", s.name())
		switch {
		case errors.Is(err, errResumed):
		case errors.Is(err, redis.Nil):
			return false
		case code(err) == "DRAINING":
			time.Sleep(100 * time.Millisecond) // the next agent grants it
		default:
			must(err)
			s.set(name, reply.(map[any]any)["holds"].(int64))
		}
	}
	return true
}

func (s *session) unlock(name string) {
	for wanted := s.held(name) - 1; s.held(name) > wanted; {
		s.set(name, wanted) // from here on a loss of the lock does not matter
		reply, err := s.call("UNLOCK", name, "IN", s.name())
		switch {
		case errors.Is(err, errResumed):
		case code(err) == "UNAVAILABLE": // released: the agent keeps trying until Redis confirms it
		default:
			must(err)
			s.set(name, reply.(int64))
		}
	}
}

// Ends the session. Nothing is held any more, so a broken connection does no harm.
func (s *session) quit() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.agent.Do(ctx, "QUIT")
}

// Receives events on a separate connection, while the other one waits or is busy.
func (s *session) listen() {
	ear := connect()
	for {
		s.mutex.Lock()
		generation, id, secret := s.generation, s.id, s.secret
		s.mutex.Unlock()
		reply, err := ear.Do(ctx, "EVENTS", id, secret, "WAIT", 60_000).Result()
		if err != nil {
			if code(err) == "" {
				s.recover(generation, false)
				ear.Close()
				ear = connect()
			}
			time.Sleep(100 * time.Millisecond) // resumed meanwhile, with a new secret
			continue
		}
		for _, event := range reply.([]any) {
			words := event.([]any)
			switch words[0] {
			case "jeopardy":
				fmt.Println("jeopardy")
				s.setAtRisk(true)
			case "safe":
				s.setAtRisk(false)
			case "lost":
				lost(words[len(words)-1])
			}
		}
	}
}

// Called with and without the lock: it reenters the lock, which is always safe.
func checkStock(s *session) {
	s.lock(lockName, time.Minute)
	s.unlock(lockName)
}

func main() {
	s := begin()
	if s.held(lockName) == 0 && !s.lock(lockName, time.Minute) {
		panic("could not acquire " + lockName + " within a minute")
	}
	fmt.Println("working on", lockName)
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		s.waitForCalm() // start nothing new while the lock is at risk
		checkStock(s)
		fmt.Println("did", orders.Text())
	}
	s.unlock(lockName)
	s.quit()
	must(os.Remove(tickets))
	fmt.Println("done")
}
