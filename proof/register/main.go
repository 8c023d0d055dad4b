// proof_register FOLDER: is what the processes of a proof saw of each key linearizable? Porcupine
// (github.com/anishathalye/porcupine) decides; this file says what a key is: one record, with four conditional
// operations, from "The idea" in the protocol (docs/proof.md quotes it).
//
//	insert(record)         done if there is none; else refused, with the record that is there
//	replace(record, seen)  done if owner and revision are as seen; else refused, with what is there
//	remove(seen)           likewise
//	get                    what is there
//	sweep(now)             what has expired by then may go; nobody says what went
//
// An operation in doubt, or whose process was killed, may take effect late or never: it has no end. One that was
// "unavailable" had no effect. Reads the lines of all *.jsonl but the ledger, and prints its verdict as JSON. For a key
// that is not linearizable, it prints the shortest beginning of its history that is not, without reads and refusals that
// it does not need.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

type record struct {
	Owner    string `json:"o"`
	Revision uint64 `json:"v"`
	State    string `json:"s"`
	Expires  int64  `json:"x"` // 0: never
	Digest   string `json:"d"` // Of all its fields.
	Result   string `json:"r"`
}

type line struct {
	At     int64             `json:"t"`
	Call   int               `json:"c"`
	Return int               `json:"r"`
	Op     string            `json:"op"`
	Key    string            `json:"k"`
	Seen   []json.RawMessage `json:"s"`
	Next   *record           `json:"n"`
	Answer string            `json:"a"`
	Now    int64             `json:"now"`
	Final  string            `json:"final"`
	Finals int64             `json:"finals"`
}

// Of an operation on one key.
type input struct {
	op       string
	process  string
	owner    string // What it had seen.
	revision uint64
	next     *record
	now      int64
}

type output struct {
	answer string // "done", "refused", or "" if that is not known.
	there  *record
}

const never = math.MaxInt64

// A step gives each record that there may be then. Only of a sweep there may be two: it need not remove all.
var possible = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{record{}} },
	Step: func(state, in, out interface{}) []interface{} {
		there, asked, answer := state.(record), in.(input), out.(output)
		none := there.Digest == ""
		holds, next := false, record{}
		only := func(can bool, then record) []interface{} {
			if can {
				return []interface{}{then}
			}
			return nil
		}
		switch asked.op {
		case "get":
			return only(same(answer.there, there), there)
		case "sweep":
			if !none && there.Expires != 0 && there.Expires <= asked.now {
				return []interface{}{there, record{}}
			}
			return []interface{}{there}
		case "insert":
			holds, next = none, *asked.next
		case "replace":
			holds, next = !none && there.Owner == asked.owner && there.Revision == asked.revision, *asked.next
		case "remove":
			holds = !none && there.Owner == asked.owner && there.Revision == asked.revision
		}
		switch answer.answer {
		case "done":
			return only(holds, next)
		case "refused":
			return only(!holds && same(answer.there, there), there)
		}
		if holds {
			return []interface{}{next}
		}
		return []interface{}{there}
	},
	Equal: func(a, b interface{}) bool { return a.(record).Digest == b.(record).Digest },
}
var model = possible.ToModel()

func same(told *record, there record) bool {
	return told == nil && there.Digest == "" || told != nil && told.Digest == there.Digest
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof_register:", err)
		os.Exit(2)
	}
}

type history map[string][]porcupine.Operation

func read(folder string) (byKey history, operations, inDoubt int) {
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	fail(err)
	byKey = history{}
	finals := map[string]*record{}
	var finalsBegan, finalsEnded int64
	var sweeps []porcupine.Operation
	for _, name := range files {
		process := strings.TrimSuffix(filepath.Base(name), ".jsonl")
		if process == "ledger" {
			continue
		}
		file, err := os.Open(name)
		fail(err)
		calls, returns := []line{}, map[int]line{}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 1<<24)
		for scanner.Scan() {
			// "r" is a number in an answer and "s" a text in a record, so only lines of interest fit.
			var at line
			if json.Unmarshal(scanner.Bytes(), &at) != nil {
				fail(fmt.Errorf("%s: not a line of a history: %s", name, scanner.Text()))
			}
			switch {
			case at.Call != 0:
				calls = append(calls, at)
			case at.Answer != "":
				returns[at.Return] = at
			case at.Final != "":
				finals[at.Final] = at.Next
			case at.Finals != 0:
				finalsBegan, finalsEnded = at.Finals, at.At
			}
		}
		fail(scanner.Err())
		file.Close()
		for _, call := range calls {
			operation, counts := pair(process, call, returns[call.Call])
			operations++
			if !counts {
				continue
			}
			if operation.Return == never && call.Op != "sweep" {
				inDoubt++
			}
			if call.Op == "sweep" {
				sweeps = append(sweeps, operation)
			} else {
				byKey[call.Key] = append(byKey[call.Key], operation)
			}
		}
	}
	if finalsEnded == 0 {
		fail(fmt.Errorf("nobody read the records at the end"))
	}
	for key := range byKey {
		byKey[key] = append(byKey[key], porcupine.Operation{Input: input{op: "get", process: "audit"},
			Output: output{"done", finals[key]}, Call: finalsBegan, Return: finalsEnded})
	}
	sort.Slice(sweeps, func(a, b int) bool { return sweeps[a].Call < sweeps[b].Call })
	for key, all := range byKey {
		byKey[key] = settle(all, sweeps)
	}
	return byKey, operations, inDoubt
}

// Whether the operation counts: one that failed for certain had no effect, and a read in doubt tells nothing.
func pair(process string, call, answer line) (porcupine.Operation, bool) {
	asked := input{op: call.Op, process: process, next: call.Next, now: call.Now}
	if len(call.Seen) == 2 {
		fail(json.Unmarshal(call.Seen[0], &asked.owner))
		fail(json.Unmarshal(call.Seen[1], &asked.revision))
	}
	operation := porcupine.Operation{Input: asked, Call: call.At, Output: output{}, Return: never}
	known := answer.Answer == "done" || answer.Answer == "refused"
	if known {
		operation.Output, operation.Return = output{answer.Answer, answer.Next}, answer.At
	}
	failed := answer.Answer != "" && answer.Answer != "in_doubt" && !known
	return operation, !failed && (known || call.Op != "get")
}

// Adds the sweeps that may have met a record of the key: those until its last answer, and of the others the last two and
// the two with the latest time, as the rest does no more than these. The server's clock may have been set back, so the
// last ones need not have the latest time. Without any, a write in doubt that nobody ever saw had no effect:
// whatever came after it would have named it, or shown it.
func settle(all, sweeps []porcupine.Operation) []porcupine.Operation {
	seen := map[string]bool{}
	earliest, last := int64(never), int64(0)
	note := func(r *record) {
		if r != nil {
			seen[fmt.Sprint(r.Owner, r.Revision)] = true
		}
	}
	for _, operation := range all {
		asked := operation.Input.(input)
		note(operation.Output.(output).there)
		if operation.Return != never && asked.process != "audit" && operation.Return > last {
			last = operation.Return
		}
		seen[fmt.Sprint(asked.owner, asked.revision)] = true
		for _, r := range []*record{asked.next, operation.Output.(output).there} {
			if r != nil && r.Expires != 0 && r.Expires < earliest {
				earliest = r.Expires
			}
		}
	}
	swept := false
	kept := []porcupine.Operation{}
	after := sort.Search(len(sweeps), func(i int) bool { return sweeps[i].Call > last })
	latest := append([]porcupine.Operation{}, sweeps[after:]...)
	sort.SliceStable(latest, func(a, b int) bool { return latest[a].Input.(input).now > latest[b].Input.(input).now })
	if len(latest) > 2 {
		latest = latest[:2]
	}
	from := int64(never)
	for _, sweep := range latest {
		from = sweep.Input.(input).now
	}
	for i, sweep := range sweeps {
		now := sweep.Input.(input).now
		if now >= earliest && (i < after || i >= len(sweeps)-2 || now >= from) {
			swept = true
			kept = append(kept, sweep)
		}
	}
	for _, operation := range all {
		next := operation.Input.(input).next
		if swept || operation.Return != never || next == nil || seen[fmt.Sprint(next.Owner, next.Revision)] {
			kept = append(kept, operation)
		}
	}
	return kept
}

const limit = 30 * time.Second

func check(all []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model, all, limit)
}

// What had happened until a moment: what has no answer yet is in doubt.
func until(all []porcupine.Operation, moment int64) []porcupine.Operation {
	kept := []porcupine.Operation{}
	for _, operation := range all {
		if operation.Call > moment {
			continue
		}
		if operation.Return > moment {
			if operation.Input.(input).op == "get" {
				continue
			}
			operation.Output, operation.Return = output{}, never
		}
		kept = append(kept, operation)
	}
	return kept
}

// As short as it gets by then.
func shortest(all []porcupine.Operation, end time.Time) []porcupine.Operation {
	moments := []int64{}
	for _, operation := range all {
		if operation.Return != never {
			moments = append(moments, operation.Return)
		}
	}
	sort.Slice(moments, func(a, b int) bool { return moments[a] < moments[b] })
	first := sort.Search(len(moments), func(i int) bool { return check(until(all, moments[i])) != porcupine.Ok })
	if first < len(moments) {
		all = until(all, moments[first])
	}
	sort.Slice(all, func(a, b int) bool { return all[a].Call < all[b].Call })
	for i := len(all) - 1; i >= 0 && time.Now().Before(end); i-- {
		// Only what has no effect may be left out: without a write that others saw, any history is wrong.
		if all[i].Input.(input).op != "get" && all[i].Output.(output).answer != "refused" {
			continue
		}
		without := append(append([]porcupine.Operation{}, all[:i]...), all[i+1:]...)
		if check(without) == porcupine.Illegal {
			all = without
		}
	}
	return all
}

func show(r *record) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s@%d.%d %s %s", r.Owner[:6], r.Revision>>20, r.Revision&0xfffff, r.State, r.Result)
}

func describe(all []porcupine.Operation) []string {
	lines := []string{}
	for _, operation := range all {
		asked, answer := operation.Input.(input), operation.Output.(output)
		ms := func(at int64) string { return fmt.Sprintf("%.3f", float64(at-all[0].Call)/1e6) }
		text := fmt.Sprintf("%s ms  %s  %s", ms(operation.Call), asked.process, asked.op)
		if asked.owner != "" {
			text += fmt.Sprintf(" over %s@%d.%d", asked.owner[:6], asked.revision>>20, asked.revision&0xfffff)
		}
		if asked.next != nil {
			text += " of " + show(asked.next)
		}
		switch {
		case operation.Return == never:
			text += ": in doubt"
		case answer.answer == "done" && asked.op != "get":
			text += ": done at " + ms(operation.Return)
		default:
			text += ": " + answer.answer + " at " + ms(operation.Return) + ", there is " + show(answer.there)
		}
		lines = append(lines, text)
	}
	return lines
}

type violation struct {
	Key     string   `json:"key"`
	History []string `json:"history"`
}

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: proof_register FOLDER"))
	}
	byKey, operations, inDoubt := read(os.Args[1])
	keys := make(chan string)
	violations, undecided := []violation{}, []string{}
	var lock sync.Mutex
	end := time.Now().Add(limit) // Of looking for short ones.
	var group sync.WaitGroup
	for i := 0; i < runtime.NumCPU(); i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for key := range keys {
				verdict := check(byKey[key])
				lock.Lock()
				switch {
				case verdict == porcupine.Unknown:
					undecided = append(undecided, key)
				case verdict == porcupine.Illegal && len(violations) < 20:
					violations = append(violations, violation{key, describe(shortest(byKey[key], end))})
				}
				lock.Unlock()
			}
		}()
	}
	for key := range byKey {
		keys <- key
	}
	close(keys)
	group.Wait()
	sort.Slice(violations, func(a, b int) bool { return len(violations[a].History) < len(violations[b].History) })
	answer := map[string]interface{}{"keys": len(byKey), "operations": operations, "in_doubt": inDoubt,
		"undecided": undecided, "violations": violations}
	fail(json.NewEncoder(os.Stdout).Encode(answer))
	if len(violations)+len(undecided) != 0 {
		os.Exit(1)
	}
}
