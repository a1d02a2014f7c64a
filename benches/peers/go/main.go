// Command peers puts redsync or rueidislock under one load; ../src/load.rs has its input and output.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	goredispool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

const (
	hold  = 3 * time.Millisecond
	pause = 2 * time.Millisecond
	lease = 30 * time.Second
)

var (
	peerName = flag.String("peer", "", "redsync or rueidislock")
	kind     = flag.String("kind", "", "cycles, handoff, holder, waiters or crowd")
	threads  = flag.Int("threads", 1, "")
	keys     = flag.Int("keys", 1, "")
	seconds  = flag.Float64("seconds", 2, "")
	warmup   = flag.Float64("warmup", 0.5, "")
	url      = flag.String("url", "", "")
	name     = flag.String("name", "bench", "")
	counter  = flag.String("counter", "", "")
)

// A session is what one goroutine uses for one lock.
type session interface {
	lock() error
	unlock() error
}

type peer interface {
	session(name string) session
	module() string
}

// --- redsync ---------------------------------------------------------------------------------------------------

type redsyncPeer struct{ fleet *redsync.Redsync }

type redsyncSession struct{ mutex *redsync.Mutex }

func openRedsync() (peer, error) {
	options, err := redis.ParseURL(*url)
	if err != nil {
		return nil, err
	}
	return redsyncPeer{redsync.New(goredispool.NewPool(redis.NewClient(options)))}, nil
}

func (p redsyncPeer) session(name string) session {
	// Keeps redsync's pauses between tries, but tries without a limit.
	return redsyncSession{p.fleet.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt32))}
}

func (redsyncPeer) module() string { return "github.com/go-redsync/redsync/v4" }

func (s redsyncSession) lock() error { return s.mutex.Lock() }

func (s redsyncSession) unlock() error {
	done, err := s.mutex.Unlock()
	if err == nil && !done {
		err = errors.New("was not held")
	}
	return err
}

// --- rueidislock -----------------------------------------------------------------------------------------------

type rueidisPeer struct{ locker rueidislock.Locker }

type rueidisSession struct {
	locker rueidislock.Locker
	name   string
	cancel context.CancelFunc
}

func openRueidis() (peer, error) {
	options, err := rueidis.ParseURL(*url)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	return rueidisPeer{locker}, err
}

func (p rueidisPeer) session(name string) session {
	return &rueidisSession{locker: p.locker, name: name}
}

func (rueidisPeer) module() string { return "github.com/redis/rueidis" }

func (s *rueidisSession) lock() error {
	_, cancel, err := s.locker.WithContext(context.Background(), s.name)
	s.cancel = cancel
	return err
}

func (s *rueidisSession) unlock() error {
	s.cancel()
	return nil
}

// --- counting --------------------------------------------------------------------------------------------------

type tally struct {
	cycles, acquired, entered, errors, longest int64
	err                                        string
	steps                                      map[int]int64
	events                                     [][3]int64
}

func (t *tally) wait(ns int64) {
	t.steps[int(math.Log(float64(max(ns, 1)))/math.Log(1.02))]++
	t.longest = max(t.longest, ns)
}

func (t *tally) failed(err error) bool {
	t.errors++
	if t.err == "" {
		t.err = err.Error()
	}
	return t.errors < 100
}

// guarded has numbers that are read and then written under the lock.
type guarded struct {
	numbers []int64
	file    *os.File
}

func (g *guarded) enter(key int) error {
	if g.file != nil {
		var bytes [8]byte
		if _, err := g.file.ReadAt(bytes[:], 0); err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(bytes[:], binary.LittleEndian.Uint64(bytes[:])+1)
		if _, err := g.file.WriteAt(bytes[:], 0); err != nil {
			return err
		}
	}
	// Two separate atomic accesses, so that simultaneous holders lose an update.
	atomic.StoreInt64(&g.numbers[key], atomic.LoadInt64(&g.numbers[key])+1)
	return nil
}

func clock(id int32) int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(id, &time); err != nil {
		fail(err)
	}
	return time.Nano()
}

func now() int64 { return clock(unix.CLOCK_MONOTONIC) }

func cpu() int64 { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func ns(seconds float64) int64 { return int64(seconds * 1e9) }

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

var input = bufio.NewReader(os.Stdin)

func expect(word string) {
	var told string
	if _, err := fmt.Fscanln(input, &told); err != nil || told != word {
		fail(fmt.Errorf("told %q instead of %q", told, word))
	}
}

// --- loads -----------------------------------------------------------------------------------------------------

func spin(s session, key int, g *guarded, end int64, t *tally) {
	for {
		asked := now()
		if asked >= end {
			return
		}
		err := s.lock()
		if err == nil {
			got := now()
			t.wait(got - asked)
			t.acquired++
			t.entered++
			if got < end {
				t.cycles++
			}
			err = errors.Join(g.enter(key), s.unlock())
		}
		if err != nil && !t.failed(err) {
			return
		}
	}
}

func fresh(warm *tally) *tally {
	t := &tally{steps: map[int]int64{}}
	if warm != nil {
		t.entered, t.errors, t.err = warm.entered, warm.errors, warm.err
	}
	return t
}

func cycles(p peer, g *guarded) ([]*tally, int64) {
	tallies := make([]*tally, *threads)
	begin := make(chan struct{})
	var begun int64
	var warm, done sync.WaitGroup
	for number := range *threads {
		warm.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			key := number % *keys
			s := p.session(fmt.Sprintf("%s:%d", *name, key))
			before := fresh(nil)
			spin(s, key, g, now()+ns(*warmup), before)
			warm.Done()
			<-begin
			t := fresh(before)
			spin(s, key, g, begun+ns(*seconds), t)
			tallies[number] = t
		}()
	}
	warm.Wait()
	fmt.Println("ready")
	expect("go")
	used := cpu()
	begun = now()
	close(begin)
	done.Wait()
	return tallies, cpu() - used
}

func handoff(p peer, g *guarded) ([]*tally, int64) {
	s := p.session(*name + ":0")
	before := fresh(nil)
	spin(s, 0, g, now()+ns(*warmup), before)
	t := fresh(before)
	fmt.Println("ready")
	expect("go")
	used := cpu()
	for end := now() + ns(*seconds); now() < end; {
		asked := now()
		if err := s.lock(); err != nil {
			fail(err)
		}
		got := now()
		if err := g.enter(0); err != nil {
			fail(err)
		}
		time.Sleep(hold)
		leaving := now()
		if err := s.unlock(); err != nil {
			fail(err)
		}
		t.events = append(t.events, [3]int64{asked, got, leaving})
		t.wait(got - asked)
		t.cycles++
		t.acquired++
		t.entered++
		time.Sleep(pause)
	}
	return []*tally{t}, cpu() - used
}

func holder(p peer) int64 {
	s := p.session(*name + ":0")
	if err := s.lock(); err != nil {
		fail(err)
	}
	fmt.Println("ready")
	expect("release")
	released := now()
	if err := s.unlock(); err != nil {
		fail(err)
	}
	return released
}

// waiters are goroutines of one client; in a crowd each has its own client, as a process would.
func waiters(p peer, g *guarded, own func() (peer, error)) ([]*tally, int64, int64) {
	tallies := make([]*tally, *threads)
	begin := make(chan struct{})
	var parked, asking, done sync.WaitGroup
	for number := range *threads {
		parked.Add(1)
		asking.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			mine := p
			var refused error
			if own != nil {
				mine, refused = own()
			}
			t := fresh(nil)
			tallies[number] = t
			parked.Done()
			<-begin
			asking.Done()
			if refused != nil {
				t.failed(refused)
				return
			}
			s := mine.session(*name + ":0")
			err := s.lock()
			if err == nil {
				t.acquired++
				t.entered++
				err = errors.Join(g.enter(0), s.unlock())
			}
			if err != nil {
				t.failed(err)
			}
		}()
	}
	parked.Wait()
	fmt.Println("ready")
	expect("go")
	used := cpu()
	close(begin)
	asking.Wait()
	fmt.Println("waiting")
	done.Wait()
	served := now()
	if own != nil {
		fmt.Println("served")
	}
	return tallies, cpu() - used, served
}

func main() {
	flag.Parse()
	opens := map[string]func() (peer, error){"redsync": openRedsync, "rueidislock": openRueidis}
	open, known := opens[*peerName]
	if !known {
		fail(fmt.Errorf("no peer %q", *peerName))
	}
	p, err := open()
	if err != nil {
		fail(err)
	}
	g := &guarded{numbers: make([]int64, *keys)}
	if *counter != "" {
		if g.file, err = os.OpenFile(*counter, os.O_RDWR, 0); err != nil {
			fail(err)
		}
	}
	answer := map[string]any{"seconds": *seconds, "version": version(p.module())}
	var tallies []*tally
	var used int64
	switch *kind {
	case "cycles":
		tallies, used = cycles(p, g)
	case "handoff":
		tallies, used = handoff(p, g)
	case "holder":
		answer["at_ns"] = holder(p)
	case "waiters":
		tallies, used, answer["at_ns"] = waiters(p, g, nil)
	case "crowd":
		tallies, used, answer["at_ns"] = waiters(p, g, open)
	default:
		fail(fmt.Errorf("no load %q here", *kind))
	}
	write(answer, tallies, g)
	answer["cpu_s"] = float64(used) / 1e9
	if err := json.NewEncoder(io.Writer(os.Stdout)).Encode(answer); err != nil {
		fail(err)
	}
}

func write(answer map[string]any, tallies []*tally, g *guarded) {
	all := fresh(nil)
	cycles := []int64{}
	for _, t := range tallies {
		cycles = append(cycles, t.cycles)
		all.acquired += t.acquired
		all.entered += t.entered
		all.errors += t.errors
		all.longest = max(all.longest, t.longest)
		all.events = append(all.events, t.events...)
		for step, count := range t.steps {
			all.steps[step] += count
		}
		if all.err == "" {
			all.err = t.err
		}
	}
	counted := int64(0)
	for _, number := range g.numbers {
		counted += number
	}
	answer["cycles"] = cycles
	answer["acquired"] = all.acquired
	answer["entered"] = all.entered
	answer["violations"] = all.entered - counted
	answer["errors"] = all.errors
	if all.err != "" {
		answer["error"] = all.err
	}
	answer["waits"] = map[string]any{"steps": all.steps, "max_ns": all.longest}
	if all.events != nil {
		answer["events"] = all.events
	}
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return ""
}
