// Runs commands from standard input on the agent's socket with go-redis.
//
// Arguments: `go-redis`, the socket, `advised` (settings) or `default`. A line is a tag, a connection's name and a
// command; several commands with ` ; ` between them are sent as one pipeline. The result is printed as the tag and a
// line of JSON, an error as `{"error": text}`, a push as `push`, the connection's name and a list.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/push"
)

// caller is a client, which has a pool, or one connection of its pool.
type caller interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
	Pipeline() redis.Pipeliner
	RegisterPushNotificationHandler(name string, handler push.NotificationHandler, protected bool) error
}

type ear string

func (name ear) HandlePushNotification(_ context.Context, _ push.NotificationHandlerContext, told []any) error {
	say("push "+string(name), told)
	return nil
}

var ctx = context.Background()
var printing sync.Mutex

func connect(name string) caller {
	options := &redis.Options{Network: "unix", Addr: os.Args[2]}
	if os.Args[3] == "advised" {
		options.ReadTimeout = -1
		options.MaxRetries = -1
	}
	client := redis.NewClient(options)
	for _, event := range []string{"lock-jeopardy", "lock-safe", "lock-lost", "lock-valid"} {
		if err := client.RegisterPushNotificationHandler(event, ear(name), false); err != nil {
			panic(err)
		}
	}
	if os.Args[3] == "advised" {
		return client.Conn()
	}
	return client
}

func say(what string, value any) {
	line, err := json.Marshal(plain(value))
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(what, string(line))
}

// plain turns the keys of maps into strings, because JSON allows no others.
func plain(value any) any {
	switch value := value.(type) {
	case map[any]any:
		object := map[string]any{}
		for key, item := range value {
			object[fmt.Sprint(key)] = plain(item)
		}
		return object
	case []any:
		list := []any{}
		for _, item := range value {
			list = append(list, plain(item))
		}
		return list
	}
	return value
}

func result(command *redis.Cmd) any {
	value, err := command.Result()
	if err == redis.Nil {
		return nil
	}
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return value
}

func run(client caller, batch []string) any {
	args := make([][]any, len(batch))
	for i, text := range batch {
		for _, word := range strings.Split(text, " ") {
			args[i] = append(args[i], word)
		}
	}
	if len(batch) == 1 {
		return result(client.Do(ctx, args[0]...))
	}
	pipeline := client.Pipeline()
	commands := make([]*redis.Cmd, len(batch))
	for i := range args {
		commands[i] = pipeline.Do(ctx, args[i]...)
	}
	pipeline.Exec(ctx) // each command has its own error
	results := make([]any, len(batch))
	for i, command := range commands {
		results[i] = result(command)
	}
	return results
}

func main() {
	clients := map[string]caller{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), " ", 3)
		if clients[parts[1]] == nil {
			clients[parts[1]] = connect(parts[1])
		}
		client := clients[parts[1]]
		go func() { say(parts[0], run(client, strings.Split(parts[2], " ; "))) }()
	}
}
