// Judges histories of locks with Porcupine: is there an order of the operations, each at one moment between its call and its
// return, in which a plain lock (read-write lock, semaphore, latch) without faults would have answered the same?
//
//	judge [-timeout 60s] [-edn FOLDER] FILE...
//
// Each file has one operation a line. For each file it prints a line of JSON. It exits with 1 when a history has no such order or none
// was found in time, and with 2 when a file cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type verdict struct {
	File       string   `json:"file"`
	Locks      int      `json:"locks"`
	Operations int      `json:"operations"`
	Illegal    []string `json:"illegal"`
	Undecided  []string `json:"undecided"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for each lock")
	edn := flag.String("edn", "", "a folder, into which each lock's history is written for Knossos")
	flag.Parse()
	status := 0
	for _, file := range flag.Args() {
		found, err := judge(file, *timeout, *edn)
		if err != nil {
			fmt.Fprintln(os.Stderr, file+":", err)
			os.Exit(2)
		}
		if len(found.Illegal)+len(found.Undecided) > 0 {
			status = 1
		}
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
	os.Exit(status)
}

func judge(file string, timeout time.Duration, edn string) (verdict, error) {
	found := verdict{File: file, Illegal: []string{}, Undecided: []string{}}
	of, err := read(file)
	if err != nil {
		return found, err
	}
	locks := make([]string, 0, len(of))
	for lock := range of {
		locks = append(locks, lock)
	}
	sort.Strings(locks)
	found.Locks = len(locks)
	for _, lock := range locks {
		operations := of[lock]
		found.Operations += len(operations)
		model, known := modelOf(operations[0].Model)
		if !known {
			return found, fmt.Errorf("%s: no model %q", lock, operations[0].Model)
		}
		history := make([]porcupine.Operation, len(operations))
		for at, op := range operations {
			ret := int64(math.MaxInt64)
			if op.Ret != nil {
				ret = *op.Ret
			}
			if ret < op.Call {
				return found, fmt.Errorf("%s: returns before it is called", lock)
			}
			history[at] = porcupine.Operation{Input: op, Call: op.Call, Return: ret}
		}
		switch porcupine.CheckOperationsTimeout(model, history, timeout) {
		case porcupine.Illegal:
			found.Illegal = append(found.Illegal, lock)
		case porcupine.Unknown:
			found.Undecided = append(found.Undecided, lock)
		}
		if edn != "" {
			if err := writeKnossos(edn, lock, operations); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// The operations of each lock.
func read(name string) (map[string][]*operation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	of := map[string][]*operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<16), 1<<20)
	for lines.Scan() {
		op := new(operation)
		decoder := json.NewDecoder(strings.NewReader(lines.Text()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(op); err != nil {
			return nil, err
		}
		of[op.Lock] = append(of[op.Lock], op)
	}
	return of, lines.Err()
}

// Writes the history of one lock for the checker Knossos: one event per line, each hold as a process. Knossos takes the outcome of an
// operation without a return as unknown.
func writeKnossos(folder, lock string, operations []*operation) error {
	type event struct {
		at    int64
		isEnd bool
		text  string
	}
	var events []event
	for _, op := range operations {
		f := op.F
		if f == "end" {
			f = "release"
		}
		say := func(what string, at int64) {
			text := fmt.Sprintf("{:process %d, :type :%s, :f :%s, :value nil, :time %d}", op.Hold, what, f, at)
			events = append(events, event{at, what == "ok", text})
		}
		say("invoke", op.Call)
		if op.Ret != nil {
			say("ok", *op.Ret)
		}
	}
	// Calls come before returns of the same moment, because the other two checkers count them as concurrent.
	sort.SliceStable(events, func(a, b int) bool {
		one, other := events[a], events[b]
		return one.at < other.at || one.at == other.at && !one.isEnd && other.isEnd
	})
	var text strings.Builder
	for _, event := range events {
		text.WriteString(event.text + "\n")
	}
	safe := strings.NewReplacer("/", "_", ":", "_").Replace(lock)
	return os.WriteFile(filepath.Join(folder, safe+".edn"), []byte(text.String()), 0o644)
}
