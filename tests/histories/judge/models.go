package main

import (
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// An operation of a history: one line of a file. docs/proof.md describes each field.
type operation struct {
	Lock  string `json:"lock"`
	Model string `json:"model"`
	F     string `json:"f"`
	Hold  uint64 `json:"hold"`
	Owner string `json:"owner"`
	Mode  string `json:"mode"`
	Units int    `json:"units"`
	Limit int    `json:"limit"`
	Fence *int64 `json:"fence"`
	Call  int64  `json:"call"`
	Ret   *int64 `json:"ret"`
	Value *int   `json:"value"`
}

// A mutex: at most one hold. Tokens rise.
type mutex struct {
	holder uint64
	fence  int64
}

func stepMutex(s, in, _ interface{}) (bool, interface{}) {
	state, op := s.(mutex), in.(*operation)
	switch op.F {
	case "acquire":
		if state.holder != 0 {
			return false, state
		}
		if op.Fence != nil {
			if *op.Fence <= state.fence {
				return false, state
			}
			state.fence = *op.Fence
		}
		state.holder = op.Hold
		return true, state
	case "reenter":
		return state.holder == op.Hold, state
	case "end":
		ended := state.holder == op.Hold
		if ended {
			state.holder = 0
		}
		return ended, state
	case "free":
		return state.holder == 0, state
	}
	return false, state
}

// The holds of a semaphore or of readers, in order. A string, because Porcupine compares states with ==.
type holds string

func (h holds) with(hold uint64) holds {
	return h + holds(strconv.FormatUint(hold, 10)+",")
}

func (h holds) without(hold uint64) (holds, bool) {
	for at, end := 0, 0; at < len(h); at = end {
		end = at + strings.IndexByte(string(h[at:]), ',') + 1
		if string(h[at:end-1]) == strconv.FormatUint(hold, 10) {
			return h[:at] + h[end:], true
		}
	}
	return h, false
}

// A read-write lock: one writer, or readers. A writer may read as well.
type readWrite struct {
	writer  uint64
	owner   string
	readers holds
}

func stepReadWrite(s, in, _ interface{}) (bool, interface{}) {
	state, op := s.(readWrite), in.(*operation)
	switch op.F {
	case "acquire":
		if op.Mode == "write" {
			if state.writer != 0 || state.readers != "" {
				return false, state
			}
			state.writer, state.owner = op.Hold, op.Owner
			return true, state
		}
		if state.writer != 0 && state.owner != op.Owner {
			return false, state
		}
		state.readers = state.readers.with(op.Hold)
		return true, state
	case "end":
		if op.Mode == "write" {
			ended := state.writer == op.Hold
			if ended {
				state.writer, state.owner = 0, ""
			}
			return ended, state
		}
		left, ended := state.readers.without(op.Hold)
		state.readers = left
		return ended, state
	case "reenter":
		if op.Mode == "write" {
			return state.writer == op.Hold, state
		}
		_, stands := state.readers.without(op.Hold)
		return stands, state
	case "free": // without a writer
		return state.writer == 0, state
	}
	return false, state
}

// A semaphore: the units of all holds are no more than its limit.
type semaphore struct {
	used int
	by   holds
}

func stepSemaphore(s, in, _ interface{}) (bool, interface{}) {
	state, op := s.(semaphore), in.(*operation)
	switch op.F {
	case "acquire":
		if state.used+op.Units > op.Limit {
			return false, state
		}
		return true, semaphore{state.used + op.Units, state.by.with(op.Hold)}
	case "end":
		left, ended := state.by.without(op.Hold)
		if !ended {
			return false, state
		}
		return true, semaphore{state.used - op.Units, left}
	case "available":
		return op.Value != nil && state.used+*op.Value <= op.Limit, state
	}
	return false, state
}

// A latch: a number that only falls. A count-down whose answer did not come may never be carried out.
func stepLatch(s, in, _ interface{}) []interface{} {
	state, op := s.(int), in.(*operation)
	if state < 0 {
		state = op.Limit
	}
	switch {
	case op.F == "count_down" && op.Value == nil:
		if state > 0 {
			return []interface{}{state, state - 1}
		}
		return []interface{}{state}
	case op.F == "count_down":
		if state > 0 && state-1 == *op.Value {
			return []interface{}{state - 1}
		}
	case op.F == "count":
		if op.Value != nil && state == *op.Value {
			return []interface{}{state}
		}
	}
	return nil
}

func modelOf(name string) (porcupine.Model, bool) {
	switch name {
	case "mutex":
		return porcupine.Model{Init: func() interface{} { return mutex{} }, Step: stepMutex}, true
	case "readwrite":
		return porcupine.Model{Init: func() interface{} { return readWrite{} }, Step: stepReadWrite}, true
	case "semaphore":
		return porcupine.Model{Init: func() interface{} { return semaphore{} }, Step: stepSemaphore}, true
	case "latch":
		// -1: no operation has set the limit yet.
		unset := func() []interface{} { return []interface{}{-1} }
		return (&porcupine.NondeterministicModel{Init: unset, Step: stepLatch}).ToModel(), true
	}
	return porcupine.Model{}, false
}
