package lockscope

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// replyLimit bounds the wait for replies that do not wait for a lock. The agent itself answers within about two seconds.
const replyLimit = 10 * time.Second

// push is an event that the agent sent unsolicited.
type push []any

// pending is a command whose reply has not been read.
type pending struct {
	done  chan struct{}
	value any
	err   error
}

// connection speaks RESP3 over a Unix socket. Replies arrive in the order of the commands.
type connection struct {
	socket  net.Conn
	onPush  func(push)
	onClose func(*connection)

	hello *pending

	mu      sync.Mutex
	waiting []*pending
	closed  bool
}

func dial(path string, onPush func(push), onClose func(*connection)) (*connection, error) {
	socket, err := net.DialTimeout("unix", path, replyLimit)
	if err != nil {
		return nil, err
	}
	c := &connection{socket: socket, onPush: onPush, onClose: onClose}
	c.hello = c.send(hello()...)
	go c.read()
	return c, nil
}

// hello returns the first command of a connection. It names the connection as LOCKSCOPE_NAME says.
func hello() []any {
	visible := func(r rune) rune {
		if r < '!' || r > '~' {
			return -1
		}
		return r
	}
	name := strings.Map(visible, os.Getenv("LOCKSCOPE_NAME"))
	if name == "" {
		return []any{"HELLO", 3}
	}
	return []any{"HELLO", 3, "SETNAME", name[:min(len(name), 100)]}
}

// refusal returns the reason that an agent that refuses the connection gives in place of its first reply.
func (c *connection) refusal() (reason replyError, refused bool) {
	select {
	case <-c.hello.done:
		reason, refused = c.hello.err.(replyError)
	default:
	}
	return reason, refused
}

// send sends a command of strings and whole numbers.
func (c *connection) send(words ...any) *pending {
	p := &pending{done: make(chan struct{})}
	bytes := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		text := fmt.Sprint(word)
		bytes = fmt.Appendf(bytes, "$%d\r\n%s\r\n", len(text), text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		p.err = errDisconnected
		close(p.done)
		return p
	}
	c.waiting = append(c.waiting, p)
	// If the agent has closed the connection, the reader reads what it sent before, which may be its reason, and then
	// fails every pending command.
	_, _ = c.socket.Write(bytes)
	return p
}

// call sends a command and waits for its reply. It closes the connection if no reply arrives in time.
func (c *connection) call(words ...any) (any, error) {
	p := c.send(words...)
	limit := time.NewTimer(replyLimit)
	defer limit.Stop()
	select {
	case <-p.done:
		return p.value, p.err
	case <-limit.C:
		c.socket.Close()
		return nil, fmt.Errorf("%w: no reply to %v within %v", errDisconnected, words[0], replyLimit)
	}
}

// quit ends the session at the agent, and waits for that for up to a second.
func (c *connection) quit() {
	timer := time.AfterFunc(time.Second, func() { c.socket.Close() })
	defer timer.Stop()
	c.send("QUIT")
	p := c.send("PING") // The end of the connection fails it.
	<-p.done
}

func (c *connection) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *connection) read() {
	reader := bufio.NewReader(c.socket)
	var err error
	for err == nil {
		var value any
		if value, err = readValue(reader); err != nil {
			break
		}
		if event, ok := value.(push); ok {
			c.onPush(event)
			continue
		}
		c.mu.Lock()
		if len(c.waiting) == 0 {
			c.mu.Unlock()
			break
		}
		p := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		if failure, ok := value.(replyError); ok {
			p.err = failure
		} else {
			p.value = value
		}
		close(p.done)
	}
	c.socket.Close()
	c.mu.Lock()
	c.closed = true
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	c.onClose(c)
	for _, p := range waiting {
		p.err = errDisconnected
		close(p.done)
	}
}

// readValue reads one RESP2 or RESP3 value: nil, bool, int64, string, []any, map[string]any, push or replyError.
func readValue(reader *bufio.Reader) (any, error) {
	line, err := reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, fmt.Errorf("the agent sent an empty line")
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+', ',':
		return rest, nil
	case '-':
		return replyError(rest), nil
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '_':
		return nil, nil
	case '#':
		return rest == "t", nil
	}
	size, err := strconv.Atoi(rest)
	if err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, nil
	}
	switch kind {
	case '$':
		bytes := make([]byte, size+2)
		if _, err := io.ReadFull(reader, bytes); err != nil {
			return nil, err
		}
		return string(bytes[:size]), nil
	case '*', '~':
		return readItems(reader, size)
	case '>':
		items, err := readItems(reader, size)
		return push(items), err
	case '%':
		items, err := readItems(reader, 2*size)
		if err != nil {
			return nil, err
		}
		fields := make(map[string]any, size)
		for i := 0; i < len(items); i += 2 {
			fields[text(items[i])] = items[i+1]
		}
		return fields, nil
	}
	return nil, fmt.Errorf("the agent sent an unknown type: %q", line)
}

func readItems(reader *bufio.Reader, size int) ([]any, error) {
	items := []any{}
	for range size {
		item, err := readValue(reader)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// text returns a field that the protocol defines as a string, empty if the field is missing.
func text(value any) string {
	word, _ := value.(string)
	return word
}

// number returns a field that the protocol defines as a whole number, 0 if the field is missing.
func number(value any) int64 {
	count, _ := value.(int64)
	return count
}

func validity(value any) time.Duration {
	return time.Duration(number(value)) * time.Millisecond
}

// validUntil returns the instant of the boot clock until which the agent guarantees a hold.
func validUntil(fields map[string]any) time.Duration {
	return time.Duration(number(fields["valid_until_ns"]))
}

// callOnce runs one command on a separate connection.
func callOnce(path string, words ...any) (any, error) {
	c, err := dial(path, func(push) {}, func(*connection) {})
	if err != nil {
		return nil, err
	}
	defer c.socket.Close()
	return c.call(words...)
}
