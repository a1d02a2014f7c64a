// Command go carries out a test's requests with redsync, and reports the results.
//
// Standard input, one request a line, fields separated by tabs: number, thread, client, verb, arguments.
// Requests of one thread run in order, different threads side by side. Standard output, one answer a line:
// number, ok or error, begun, ended (0: no test needs these times), text. The program ends with its input.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	redigopool "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
)

type client struct {
	fleet *redsync.Redsync
	held  map[string]*redsync.Mutex
}

var (
	mutex   sync.Mutex
	clients = map[string]*client{}
)

func main() {
	threads := map[string]chan []string{}
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		request := strings.Split(requests.Text(), "\t")
		thread, known := threads[request[1]]
		if !known {
			thread = make(chan []string, 64)
			threads[request[1]] = thread
			go serve(thread)
		}
		thread <- request
	}
}

func serve(requests chan []string) {
	for request := range requests {
		verdict := "ok"
		text, err := perform(request[2], request[3], request[4:])
		if err != nil {
			verdict = "error"
			text = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		mutex.Lock()
		fmt.Printf("%s\t%s\t0\t0\t%s\n", request[0], verdict, text)
		mutex.Unlock()
	}
}

func perform(name, verb string, arguments []string) (string, error) {
	if verb == "connect" {
		url := arguments[0]
		pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(url) }}
		mutex.Lock()
		defer mutex.Unlock()
		clients[name] = &client{redsync.New(redigopool.NewPool(pool)), map[string]*redsync.Mutex{}}
		return "", nil
	}
	mutex.Lock()
	on := clients[name]
	mutex.Unlock()
	switch verb {
	case "try-lease":
		return on.take(arguments[0], arguments[1], "0")
	case "try-for-lease":
		return on.take(arguments[0], arguments[2], arguments[1])
	case "unlock":
		return on.release(arguments[0])
	}
	return "", errors.New("no such verb: " + verb)
}

func (on *client) take(lock, leaseMs, waitMs string) (string, error) {
	lease, err := strconv.Atoi(leaseMs)
	if err != nil {
		return "", err
	}
	wait, err := strconv.Atoi(waitMs)
	if err != nil {
		return "", err
	}
	pause := 50 * time.Millisecond
	tries := 1 + int(time.Duration(wait)*time.Millisecond/pause)
	taken := on.fleet.NewMutex(lock, redsync.WithExpiry(time.Duration(lease)*time.Millisecond),
		redsync.WithTries(tries), redsync.WithRetryDelay(pause))
	err = taken.LockContext(context.Background())
	var busy *redsync.ErrTaken
	if errors.As(err, &busy) || errors.Is(err, redsync.ErrFailed) {
		return "false", nil
	}
	if err != nil {
		return "", err
	}
	mutex.Lock()
	on.held[lock] = taken
	mutex.Unlock()
	return "true", nil
}

// release unlocks the lock that take acquired. redsync compares tokens, so another owner's lock stays locked.
func (on *client) release(lock string) (string, error) {
	mutex.Lock()
	held := on.held[lock]
	delete(on.held, lock)
	mutex.Unlock()
	if held == nil {
		return "", errors.New("never taken here: " + lock)
	}
	released, err := held.Unlock()
	if err != nil {
		return "", err
	}
	if !released {
		return "", errors.New("not released: " + lock)
	}
	return "", nil
}
