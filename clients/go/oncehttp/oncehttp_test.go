package oncehttp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"once.invalid/once"
	"once.invalid/once/oncehttp"
)

type reply struct {
	status int
	header http.Header
	body   string
	word   string
}

// wait returns what the channel gives. That it does not is a fault, and not a reason to wait for ever.
func wait[T any](what string, channel <-chan T) T {
	select {
	case got := <-channel:
		return got
	case <-time.After(time.Minute):
		panic("not seen within a minute: " + what) // With the stacks of all goroutines.
	}
}

func TestMiddleware(t *testing.T) {
	client, err := once.New(once.Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var mutex sync.Mutex
	var charged []string
	entered, leave := make(chan struct{}, 8), make(chan struct{}) // A handler never waits to enter, if it runs too often.
	handler := http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			t.Error(err)
		}
		what := strings.TrimPrefix(request.URL.Path, "/")
		mutex.Lock()
		charged = append(charged, what)
		number := len(charged)
		mutex.Unlock()
		if once.ClaimFrom(request.Context()) == nil {
			t.Error("the handler has no claim")
		}
		writer.Header().Set("Set-Cookie", "session=secret")
		switch what {
		case "charges":
			writer.Header().Set("Location", fmt.Sprintf("/charges/%d", number))
			writer.WriteHeader(201)
			fmt.Fprintf(writer, "charge %d of %d bytes", number, len(body))
		case "slow":
			entered <- struct{}{}
			<-leave
			fmt.Fprint(writer, "done")
		case "busy":
			writer.WriteHeader(429)
		case "ambiguous":
			writer.WriteHeader(502)
		case "large":
			fmt.Fprint(writer, strings.Repeat("x", 1_100_000))
		case "raises":
			panic(http.ErrAbortHandler)
		}
	})
	server := httptest.NewServer(oncehttp.Middleware(client, oncehttp.Options{Principal: oncehttp.Header("X-Api-Key"), Service: "shop"})(handler))
	defer server.Close()
	letGo := sync.OnceFunc(func() { close(leave) })
	defer letGo() // Before the server is closed, which waits for its handlers: also when the test fails.
	sender := &http.Client{Timeout: time.Minute}

	try := func(path, key, body, who string) (reply, error) {
		request, err := http.NewRequest("POST", server.URL+path, strings.NewReader(body))
		if err != nil {
			return reply{}, err
		}
		request.Header.Set("Content-Type", "application/json")
		if key != "" {
			request.Header.Set("Idempotency-Key", key)
		}
		if who != "" {
			request.Header.Set("X-Api-Key", who)
		}
		got, err := sender.Do(request)
		if err != nil {
			return reply{}, err
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		var problem struct{ Type string }
		if got.Header.Get("Content-Type") == "application/problem+json" {
			err = json.Unmarshal(text, &problem)
		}
		return reply{got.StatusCode, got.Header, string(text), strings.TrimPrefix(problem.Type, "urn:once:problem:")}, err
	}
	post := func(path, key, body, who string) reply {
		t.Helper()
		got, err := try(path, key, body, who)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	expect := func(got reply, status int, bodyOrWord string) reply {
		t.Helper()
		if got.status != status || (got.body != bodyOrWord && got.word != bodyOrWord) {
			t.Fatalf("got %d %q, wanted %d %q", got.status, got.body, status, bodyOrWord)
		}
		return got
	}

	expect(post("/charges", "order-17", `{"a": 1, "b": 2}`, "alice"), 201, "charge 1 of 16 bytes")
	again := expect(post("/charges", `"order-17"`, `{"b":2e0,"a":1}`, "alice"), 201, "charge 1 of 16 bytes") // JSON by its meaning.
	if again.header.Get("Location") != "/charges/1" || again.header.Get("Idempotent-Replayed") != "true" || again.header.Get("Set-Cookie") != "" {
		t.Fatalf("replayed with %v", again.header)
	}
	expect(post("/charges", "order-17", `{"a": 2}`, "alice"), 422, "key-reused")
	expect(post("/charges", "", `{}`, "alice"), 400, "key-missing")
	expect(post("/charges", "undefined", `{}`, "alice"), 400, "key-invalid")
	expect(post("/charges", "a, b", `{}`, "alice"), 400, "keys-differ")
	expect(post("/charges", "order-18", `{}`, ""), 400, "principal-missing")
	expect(post("/charges", "order-18", `{}`, "undefined"), 400, "principal-missing")
	expect(post("/charges", "order-18", `{}`, "eyJhbGciOiJ9.eyJzdWIiOiJ9.sig"), 400, "principal-unstable")
	expect(post("/charges", "order-18", strings.Repeat("x", 1<<20+1), "alice"), 413, "body-too-large")
	expect(post("/charges", "order-17", `{"a": 1, "b": 2}`, "bob"), 201, "charge 2 of 16 bytes")   // A key belongs to its client.
	expect(post("/charges", "order-19", `{"a": 1, "a": 2}`, "alice"), 201, "charge 3 of 16 bytes") // Compared by its bytes.
	expect(post("/charges", "order-19", `{"a": 1, "a": 2}`, "alice"), 201, "charge 3 of 16 bytes")
	expect(post("/charges", "order-19", `{"a": 1, "a": 3}`, "alice"), 422, "key-reused")
	expect(post("/charges", "order-24", "{\"a\": \"\xff\"}", "alice"), 201, "charge 4 of 10 bytes") // No UTF-8: by its bytes.
	expect(post("/charges", "order-24", "{\"a\": \"\xfe\"}", "alice"), 422, "key-reused")
	expect(post("/busy", "order-20", "", "alice"), 429, "")
	expect(post("/busy", "order-20", "", "alice"), 429, "")
	for _, path := range []string{"/path%FE", "/path%FF", "/path/a", "/path%2Fa"} { // Each is an operation of its own.
		if expect(post(path, "order-25", "", "alice"), 200, "").header.Get("Idempotent-Replayed") != "" {
			t.Fatalf("%s has the answer of another path", path)
		}
	}
	expect(post("/ambiguous", "order-21", "", "alice"), 502, "")
	expect(post("/ambiguous", "order-21", "", "alice"), 409, "outcome-unknown")
	// The connection breaks. net/http sends a request with a key again by itself.
	if got, err := try("/raises", "order-22", "", "alice"); err == nil {
		expect(got, 409, "outcome-unknown")
	}
	expect(post("/raises", "order-22", "", "alice"), 409, "outcome-unknown")
	if got := post("/large", "order-23", "", "alice"); len(got.body) != 1_100_000 {
		t.Fatalf("%d bytes", len(got.body))
	}
	expect(post("/large", "order-23", "", "alice"), 410, "answer-not-kept")
	slow := make(chan reply, 1)
	go func() {
		got, err := try("/slow", "order-30", "", "alice")
		if err != nil {
			t.Error(err)
		}
		slow <- got
	}()
	wait("the slow request's handler", entered)
	if conflict := expect(post("/slow", "order-30", "", "alice"), 409, "in-progress"); conflict.header.Get("Retry-After") == "" {
		t.Fatal("no Retry-After")
	}
	letGo()
	expect(wait("the slow request's response", slow), 200, "done")
	if got, wanted := strings.Join(charged, " "), "charges charges charges charges busy busy path\xfe path\xff path/a path/a ambiguous raises large slow"; got != wanted {
		t.Fatalf("ran %s, wanted %s", got, wanted)
	}
}

func TestTheClaimOfAHandlerThatNeverReturnsLapses(t *testing.T) {
	warned, leave, ended := make(chan string, 8), make(chan struct{}), make(chan struct{})
	client, err := once.New(once.Config{Timeout: time.Minute, Warn: func(text string) { warned <- text }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	handler := oncehttp.Middleware(client, oncehttp.Options{Principal: oncehttp.Shared, Claim: []once.Option{
		once.MaxDuration(time.Millisecond), once.Lease(1500 * time.Millisecond), once.Wait(time.Minute)}})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-leave }))
	post := func() string {
		request := httptest.NewRequest("POST", "/never", nil)
		request.Header.Set("Idempotency-Key", "order-1")
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		return response.Body.String()
	}
	letGo := sync.OnceFunc(func() { close(leave) })
	defer letGo()
	go func() { defer close(ended); post() }()
	if text := wait("the end of the renewals", warned); !strings.Contains(text, "MaxDuration") {
		t.Fatal(text)
	}
	if text := post(); !strings.Contains(text, "urn:once:problem:outcome-unknown") {
		t.Fatal(text)
	}
	letGo()
	wait("the end of the first request", ended)
}

func TestARefusedFinishDoesNotSayThatNothingWasDone(t *testing.T) {
	var warned []string
	client, err := once.New(once.Config{Server: os.Getenv("ONCE_TEST_REFUSING"), Timeout: time.Minute, Warn: func(text string) { warned = append(warned, text) }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	handler := http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprint(writer, "charged") })
	request := httptest.NewRequest("POST", "/refused", nil)
	request.Header.Set("Idempotency-Key", "order-1")
	response := httptest.NewRecorder()
	oncehttp.Middleware(client, oncehttp.Options{Principal: oncehttp.Shared})(handler).ServeHTTP(response, request)
	text := response.Body.String()
	if response.Code != 503 || !strings.Contains(text, "urn:once:problem:not-recorded") || !strings.Contains(text, "was carried out") || len(warned) != 1 {
		t.Fatalf("got %d %s, warned %q", response.Code, text, warned)
	}
}

func TestMistakesPanic(t *testing.T) {
	client, err := once.New(once.Config{Server: "unix:/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string]oncehttp.Options{"no principal": {}, "a method": {Principal: oncehttp.Shared, Methods: []string{"POTS"}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", name)
				}
			}()
			oncehttp.Middleware(client, options)
		}()
	}
	defer func() {
		if recover() == nil {
			t.Error("a header that changes is accepted")
		}
	}()
	oncehttp.Header("X-Signature")
}
