// Plays calls for tests/clients/clients_test.py with the Go module.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"once.invalid/once"
)

type action struct {
	Effect, Gate, Step, Throw *string
	Append, Text              string
	WaitMs                    *int64 `json:"wait_ms"`
	Check, Unserialisable     bool
	Call                      *message
	Work                      []action
	Large                     int
	Return                    any
}

type message struct {
	Do, ID, Scope, Gate string
	Key                 *string
	Payload             any
	Options             struct {
		LeaseMs      int64  `json:"lease_ms"`
		WaitMs       int64  `json:"wait_ms"`
		OnLapse      string `json:"on_lapse"`
		OnError      string `json:"on_error"`
		OnUnrecorded string `json:"on_unrecorded"`
	}
	Work []action

	Server, Store, Program string
	TokenFile              string `json:"token_file"`
	CAFile                 string `json:"ca_file"`
	CertFile               string `json:"cert_file"`
	KeyFile                string `json:"key_file"`
	TimeoutMs              int64  `json:"timeout_ms"`
}

type rejected struct{ text string }

func (r rejected) Error() string { return r.text }

var (
	mutex   sync.Mutex
	gates   = map[string]chan struct{}{}
	cancels = map[string]context.CancelFunc{}
	client  *once.Client
)

func say(event map[string]any) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	fmt.Println(string(line))
}

func gate(name string) chan struct{} {
	mutex.Lock()
	defer mutex.Unlock()
	if gates[name] == nil {
		gates[name] = make(chan struct{})
	}
	return gates[name]
}

func appendTo(path, text string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(text + "\n")
	return err
}

func work(caller, ctx context.Context, call message, claim *once.Claim, actions []action) (any, error) {
	for _, a := range actions {
		switch {
		case a.Effect != nil:
			say(map[string]any{"id": call.ID, "effect": *a.Effect, "attempt": claim.Attempt})
		case a.Gate != nil:
			say(map[string]any{"id": call.ID, "at": *a.Gate})
			select {
			case <-gate(*a.Gate):
			case <-caller.Done(): // Not ctx: a lost claim is to be found at the end.
				return nil, caller.Err()
			}
		case a.Append != "":
			if err := appendTo(a.Append, a.Text); err != nil {
				return nil, err
			}
		case a.WaitMs != nil:
			time.Sleep(time.Duration(*a.WaitMs) * time.Millisecond)
		case a.Step != nil:
			if _, err := once.Step(ctx, claim, *a.Step, func(ctx context.Context) (any, error) { return work(caller, ctx, call, claim, a.Work) }); err != nil {
				return nil, err
			}
		case a.Check:
			if err := claim.Check(ctx); err != nil {
				return nil, err
			}
		case a.Call != nil:
			run(ctx, *a.Call)
		case a.Throw != nil:
			return nil, rejected{*a.Throw}
		case a.Unserialisable:
			return make(chan int), nil
		case a.Large > 0:
			return strings.Repeat("x", a.Large), nil
		default:
			return a.Return, nil
		}
	}
	return nil, nil
}

func run(ctx context.Context, call message) {
	caller, cancel := context.WithCancel(ctx)
	defer cancel()
	mutex.Lock()
	cancels[call.ID] = cancel
	mutex.Unlock()
	given := []once.Option{once.Lease(time.Duration(call.Options.LeaseMs) * time.Millisecond), once.Wait(time.Duration(call.Options.WaitMs) * time.Millisecond)}
	if call.Options.OnLapse == "hold" {
		given = append(given, once.HoldOnLapse())
	}
	if call.Options.OnError != "" {
		given = append(given, once.OnError(func(error) once.Fate { return once.Fate(call.Options.OnError) }))
	}
	if call.Options.OnUnrecorded == "fail" {
		given = append(given, once.FailIfUnrecorded())
	}
	key := ""
	if call.Key != nil {
		key = *call.Key
	}
	result, err := once.Call(caller, client, call.Scope, key, call.Payload, func(ctx context.Context, claim *once.Claim) (any, error) {
		return work(caller, ctx, call, claim, call.Work)
	}, given...)
	var known *once.Error
	var thrown rejected
	switch {
	case err == nil:
		if _, isChannel := result.(chan int); isChannel {
			result = nil
		}
		say(map[string]any{"id": call.ID, "result": result})
	case errors.As(err, &known) && known.Failure != nil:
		say(map[string]any{"id": call.ID, "error": "failed", "message": known.Failure.Message})
	case errors.As(err, &known):
		say(map[string]any{"id": call.ID, "error": known.Kind.Error(), "message": known.Message})
	case errors.As(err, &thrown):
		say(map[string]any{"id": call.ID, "error": "thrown", "message": thrown.text})
	case errors.Is(err, context.Canceled):
		say(map[string]any{"id": call.ID, "error": "cancelled"})
	default:
		panic(err)
	}
}

func main() {
	say(map[string]any{"ready": "go", "can": []string{"cancel"}})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var got message
		if err := json.Unmarshal(line, &got); err != nil {
			panic(err)
		}
		switch got.Do {
		case "client":
			if client, err = once.New(once.Config{Server: got.Server, Store: got.Store, TokenFile: got.TokenFile, CAFile: got.CAFile,
				CertFile: got.CertFile, KeyFile: got.KeyFile, Program: got.Program, Timeout: time.Duration(got.TimeoutMs) * time.Millisecond}); err != nil {
				panic(err)
			}
		case "open":
			close(gate(got.Gate))
		case "cancel":
			mutex.Lock()
			cancels[got.ID]()
			mutex.Unlock()
		default:
			go run(context.Background(), got)
		}
	}
}
