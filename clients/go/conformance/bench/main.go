// Measures this library: `bench uncontended|one WORKERS SECONDS` prints one line of JSON.
//
// `uncontended` is one worker that acquires and releases a free lock, `one` is many workers that compete for one lock.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	lockscope "github.com/lockscope/lockscope/clients/go"
)

var (
	agent = lockscope.NewAgent()
	name  = fmt.Sprint("bench:", os.Getpid())
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func pair(ctx context.Context, work func()) {
	hold := must(agent.Lock(ctx, name))
	work()
	must(0, hold.Release())
}

func uncontended(end time.Time) {
	var times []time.Duration
	for began := time.Now(); began.Before(end); began = time.Now() {
		pair(context.Background(), func() {})
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	micros := func(share int) float64 { return float64(times[(len(times)-1)*share/100].Nanoseconds()) / 1000 }
	fmt.Printf("{\"p50_us\": %f, \"p99_us\": %f}\n", micros(50), micros(99))
}

func one(workers int, end time.Time) {
	switches, last := 0, -1
	start := time.Now()
	var all sync.WaitGroup
	for worker := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for ctx := lockscope.WithOwner(context.Background()); time.Now().Before(end); {
				pair(ctx, func() {
					if last != worker {
						switches++
					}
					last = worker
				})
			}
		}()
	}
	all.Wait()
	fmt.Printf("{\"switches_per_s\": %f}\n", float64(switches)/time.Since(start).Seconds())
}

func main() {
	workers, seconds := must(strconv.Atoi(os.Args[2])), must(strconv.ParseFloat(os.Args[3], 64))
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	if os.Args[1] == "one" {
		one(workers, end)
	} else {
		uncontended(end)
	}
	agent.Close()
}
