package once_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"once.invalid/once"
)

// newClient is of the server that ONCE_SERVER names, on an empty store: tests/clients/go_test.py starts both.
func newClient(t *testing.T) *once.Client {
	t.Helper()
	if os.Getenv("ONCE_SERVER") == "" {
		t.Fatal("ONCE_SERVER names no server: run tests/clients/go_test.py")
	}
	client, err := once.New(once.Config{Timeout: time.Minute, Warn: func(message string) { t.Log(message) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

type order struct {
	ID    string
	Cents int
}

func equal[T comparable](t *testing.T, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("got %v, wanted %v", got, wanted)
	}
}

func is(t *testing.T, err, wanted error) {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Fatalf("got %v, wanted %v", err, wanted)
	}
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

func panics(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	fn()
}

func TestAFunctionRunsOnce(t *testing.T) {
	ctx, ran := context.Background(), 0
	charge := once.Func(newClient(t), "func", func(o order) string { return o.ID }, func(ctx context.Context, o order) (int, error) {
		ran++
		equal(t, once.ClaimFrom(ctx).Key, o.ID)
		return ran, nil
	}, once.Wait(0))
	for i := 0; i < 2; i++ {
		got, err := charge(ctx, order{"17", 100})
		is(t, err, nil)
		equal(t, got, 1)
	}
	_, err := charge(ctx, order{"17", 101})
	is(t, err, once.ErrKeyReused)
	for _, key := range []string{"", "undefined", "NULL", "<nil>"} {
		_, err := charge(ctx, order{key, 1})
		is(t, err, once.ErrKeyMissing)
	}
	equal(t, ran, 1)
}

func TestPayloadChoosesWhatIsCompared(t *testing.T) {
	ctx, client := context.Background(), newClient(t)
	key := func(o order) string { return o.ID }
	work := func(context.Context, order) (int, error) { return 1, nil }
	total := once.Func(client, "payload", key, work, once.Payload(func(o order) any { return o.Cents % 10 }))
	nothing := once.Func(client, "nothing", key, work, once.CompareNothing())
	for _, cents := range []int{1, 11} {
		_, err := total(ctx, order{"17", cents})
		is(t, err, nil)
		_, err = nothing(ctx, order{"17", cents})
		is(t, err, nil)
	}
	_, err := total(ctx, order{"17", 2})
	is(t, err, once.ErrKeyReused)
	floats := once.Func(client, "floats", func(float64) string { return "a" }, func(context.Context, float64) (int, error) { return 1, nil })
	if _, err := floats(ctx, math.NaN()); err == nil {
		t.Fatal("NaN cannot be compared")
	}
}

func TestWhatJSONWouldMakeEqualIsRefused(t *testing.T) {
	type card struct {
		Kind   string
		number int
	}
	type stamped struct {
		order
		At    time.Time
		Notes map[string]any
		Pin   int `json:"-"`
	}
	type due struct { // Its MarshalJSON is that of time.Time, which leaves Cents out.
		time.Time
		Cents int
	}
	type dated struct{ time.Time }
	client, ctx := newClient(t), context.Background()
	work := func(context.Context, *once.Claim) (int, error) { return 1, nil }
	refused := []any{card{"visa", 1}, &card{}, []any{card{}}, map[string]any{"a": card{}}, errors.New("x"), *big.NewInt(5), "a\xff", map[string]int{"\xff": 1},
		make(chan int), func() {}, math.Inf(1), struct{ At any }{card{}}, sync.Mutex{},
		due{}, &due{}, []due{{}}, struct{ Due *due }{&due{}}}
	for _, payload := range refused {
		if _, err := once.Call(ctx, client, "refused", "a", payload, work); err == nil || !strings.Contains(err.Error(), "choose what counts with Payload") {
			t.Errorf("%#v gives %v", payload, err)
		}
	}
	for i, payload := range []any{stamped{order: order{"1", 2}, At: time.Now(), Notes: map[string]any{"a": []any{1, nil}}}, big.NewInt(5), json.RawMessage("1"), []byte("\xff"), dated{}} {
		_, err := once.Call(ctx, client, "compared", fmt.Sprint("key ", i), payload, work)
		is(t, err, nil)
	}
}

func TestMistakesAreReportedWhereTheyAreMade(t *testing.T) {
	client := newClient(t)
	key := func(o order) string { return o.ID }
	work := func(context.Context, order) (int, error) { return 1, nil }
	once.Func(client, "mistakes", key, work)
	panics(t, "a scope that is used twice", func() { once.Func(client, "mistakes", key, work) })
	panics(t, "an empty scope", func() { once.Func(client, "", key, work) })
	panics(t, "no key", func() { once.Func[order, int](client, "no key", nil, work) })
	panics(t, "a negative lease", func() { once.Func(client, "negative", key, work, once.Lease(-1)) })
	for _, config := range []once.Config{{Server: "unix:"}, {Server: "http://example.com:1", TokenFile: "x"}, {Server: "http://127.0.0.1", TokenFile: "x"},
		{Server: "http://127.0.0.1:1"}, {Server: "unix:x", Store: "sqlite:x"}} {
		if _, err := once.New(config); err == nil {
			t.Errorf("%+v is accepted", config)
		}
	}
}

type declined struct{}

func (declined) Error() string { return "declined" }

func TestTheFateOfAnError(t *testing.T) {
	ctx, client := context.Background(), newClient(t)
	busy, unclear := errors.New("busy"), errors.New("unclear")
	fate := once.OnError(func(err error) once.Fate {
		switch err {
		case busy:
			return once.Release
		case unclear:
			return "hodl"
		}
		return once.Store
	})
	for again, first := range map[error]error{busy: busy, once.ErrStoredFailure: declined{}, once.ErrOutcomeUnknown: unclear} {
		for _, wanted := range []error{first, again} {
			_, err := once.Call(ctx, client, "fates", first.Error(), nil, func(context.Context, *once.Claim) (int, error) { return 0, first }, fate, once.Wait(0))
			is(t, err, wanted)
		}
	}
	shown, err := exec.Command(os.Getenv("ONCE_PROGRAM"), "show", "--scope", "fates", "--key", "unclear", "--json").CombinedOutput()
	if err != nil || !strings.Contains(string(shown), "*errors.errorString: unclear") {
		t.Fatalf("%v: %s", err, shown) // The record has the text: see the README.
	}
	_, err = once.Call(ctx, client, "fates", "declined", nil, func(context.Context, *once.Claim) (int, error) { return 0, nil })
	var known *once.Error
	if !errors.As(err, &known) || known.Failure == nil || known.Failure.Code != "once_test.declined" || known.Failure.Message != "declined" {
		t.Fatalf("got %+v", known)
	}
}

func TestAPanicLetsTheClaimLapse(t *testing.T) {
	ctx, client := context.Background(), newClient(t)
	panics(t, "the work", func() {
		_, _ = once.Call(ctx, client, "panics", "a", nil, func(context.Context, *once.Claim) (int, error) { panic("a bug") })
	})
	_, err := once.Call(ctx, client, "panics", "a", nil, func(context.Context, *once.Claim) (int, error) { return 0, nil }, once.Wait(0))
	is(t, err, once.ErrInProgress)
}

func TestALostClaimCancelsTheWork(t *testing.T) {
	client := newClient(t)
	_, err := once.Call(context.Background(), client, "lost", "a", nil, func(ctx context.Context, claim *once.Claim) (int, error) {
		if out, err := exec.Command(os.Getenv("ONCE_PROGRAM"), "release", "--scope", "lost", "--key", "a", "--force", "--reason", "by hand").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		wait("the loss of the claim", ctx.Done())
		is(t, context.Cause(ctx), once.ErrClaimLost)
		is(t, claim.Check(context.Background()), once.ErrClaimLost)
		return 0, context.Cause(ctx)
	}, once.Lease(1500*time.Millisecond))
	is(t, err, once.ErrClaimLost)
}

func TestTextsThatAreNoUTF8AreRefused(t *testing.T) {
	client, ctx := newClient(t), context.Background()
	work := func(context.Context, *once.Claim) (int, error) { t.Error("it ran"); return 0, nil }
	_, err := once.Call(ctx, client, "utf8", "a\xff", nil, work)
	is(t, err, once.ErrKeyMissing)
	_, err = once.Call(ctx, client, "utf8\xff", "a", nil, work)
	is(t, err, once.ErrKeyMissing)
	if _, err = once.Call(ctx, client, "utf8", "a", json.RawMessage("\"\xff\""), work); err == nil {
		t.Fatal("it is compared as another text")
	}
}

func TestWhatNamesNoSafeServerIsRefused(t *testing.T) {
	for _, one := range []struct {
		config once.Config
		wanted string
	}{
		{once.Config{Server: "http://db.internal:7117", TokenFile: "x"}, "unencrypted"},
		{once.Config{Server: "http://0.0.0.0:7117", TokenFile: "x"}, "unencrypted"},
		{once.Config{Server: "http://127.0.0.1.example:7117", TokenFile: "x"}, "unencrypted"},
		{once.Config{Server: "https://db:7117"}, "needs a token"},
		{once.Config{Server: "https://user:hush@db:7117", TokenFile: "x"}, "TokenFile or ONCE_TOKEN_FILE"},
		{once.Config{Server: "https://hush@db", TokenFile: "x"}, "TokenFile or ONCE_TOKEN_FILE"},
		{once.Config{Server: "https://db:7117?token=hush", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://db:7117/#hush", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://db:x/", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://db/v1", TokenFile: "x"}, "none of"},
		{once.Config{Server: "ftp://db:1", TokenFile: "x"}, "none of"},
		{once.Config{Server: "http://127.0.0.1", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://db", CertFile: "x"}, "both CertFile and KeyFile"},
		{once.Config{Server: "https://db", TokenFile: "x", CertFile: "x", KeyFile: "x"}, "not both"},
		{once.Config{Server: "http://127.0.0.1:1", TokenFile: "x", CAFile: "x"}, "for https:"},
		{once.Config{Server: "unix:s", CAFile: "x"}, "at an address"},
		{once.Config{Store: "sqlite:x.db", TokenFile: "x"}, "at an address"},
		{once.Config{Server: "https://db:0", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://db:65536", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://b\u00fccher.example", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://[fe80::1%25eth0]:1", TokenFile: "x"}, "none of"},
		{once.Config{Server: "https://db\\evil", TokenFile: "x"}, "none of"},
		{once.Config{Server: "http://127.1:1", TokenFile: "x"}, "unencrypted"},
	} {
		_, err := once.New(one.config)
		if err == nil || !strings.Contains(err.Error(), one.wanted) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%+v: %v", one.config, err)
		}
	}
	for _, server := range []string{"https://db", "https://[::1]:7117/", "http://localhost:7117", "http://127.0.0.2:1"} {
		if _, err := once.New(once.Config{Server: server, TokenFile: "x"}); err != nil {
			t.Error(err)
		}
	}
}

func TestAnEmptyVariableIsRefused(t *testing.T) {
	for _, empty := range []string{"ONCE_SERVER", "ONCE_TOKEN_FILE", "ONCE_CA_FILE"} {
		for name, value := range map[string]string{"ONCE_SERVER": "https://db.invalid", "ONCE_TOKEN_FILE": "x", "ONCE_CA_FILE": "x", "ONCE_STORE": "sqlite:x.db"} {
			t.Setenv(name, value)
		}
		t.Setenv(empty, "")
		if _, err := once.New(once.Config{}); err == nil || !strings.Contains(err.Error(), empty+" is empty") {
			t.Errorf("%s: %v", empty, err)
		}
	}
}

func TestThePasswordOfAStoreIsNeverShown(t *testing.T) {
	client, err := once.New(once.Config{Store: "postgresql://user:hush@db/once"})
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%+v %#v", client, client); strings.Contains(shown, "hush") {
		t.Error(shown)
	}
}

func TestATokenIsNeverShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	client, err := once.New(once.Config{Server: "https://127.0.0.1:1", TokenFile: file, Timeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range [][2]string{{"hush hush", "holds no token"}, {"h\u00fcsh", "holds no token"}, {"", "holds no token"}, {"hush\n", "nothing was run"}} {
		if err := os.WriteFile(file, []byte(one[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = once.Call(context.Background(), client, "shown", "a", nil, func(context.Context, *once.Claim) (int, error) { return 1, nil })
		is(t, err, once.ErrUnavailable)
		for _, shown := range []string{err.Error(), fmt.Sprintf("%+v %#v", err, err), fmt.Sprintf("%+v %#v", client, client)} {
			if strings.Contains(shown, "hush") || !strings.Contains(err.Error(), one[1]) {
				t.Errorf("%s", shown)
			}
		}
	}
}

func TestAnotherUsersServerIsNotUsed(t *testing.T) {
	address := os.Getenv("ONCE_TEST_STRANGER")
	if address == "" { // Only root can start it.
		return
	}
	client, err := once.New(once.Config{Server: address, Timeout: time.Second})
	is(t, err, nil)
	_, err = once.Call(context.Background(), client, "strangers", "a", nil, func(context.Context, *once.Claim) (int, error) { return 1, nil })
	is(t, err, once.ErrUnavailable)
	if !strings.Contains(err.Error(), "65534") {
		t.Fatal(err)
	}
}

func TestStepsAndDerivedKeys(t *testing.T) {
	_, err := once.Call(context.Background(), newClient(t), "steps", "a", nil, func(ctx context.Context, claim *once.Claim) (int, error) {
		equal(t, len(claim.DerivedKeys["bank"]), 64)
		is(t, claim.Note(ctx, "half done"), nil)
		for n := 1; n <= 2; n++ {
			got, err := once.Step(ctx, claim, "a/b.", func(context.Context) (int, error) { return n, nil })
			is(t, err, nil)
			equal(t, got, 1)
		}
		_, err := once.Step(ctx, claim, "bad", func(context.Context) (float64, error) { return math.NaN(), nil })
		if err == nil || !strings.Contains(err.Error(), "ran") {
			t.Fatal(err)
		}
		_, err = once.Step(ctx, claim, strings.Repeat("x", 256), func(context.Context) (int, error) { return 1, nil })
		if err == nil || claim.ValidFor() <= 0 {
			t.Fatal("a name that is too long is accepted, or the claim is over")
		}
		return 1, nil
	}, once.Derive("bank"))
	is(t, err, nil)
}

func TestProtectionIsSwitchedOffOnlyByItsWord(t *testing.T) {
	ran := 0
	charge := once.Func(newClient(t), "disabled", func(string) string { return "a" }, func(context.Context, string) (int, error) { ran++; return ran, nil })
	t.Setenv("ONCE_DISABLED", "1")
	for i := 1; i <= 2; i++ {
		got, err := charge(context.Background(), "x")
		is(t, err, nil)
		equal(t, got, i)
	}
	t.Setenv("ONCE_DISABLED", "2")
	if _, err := charge(context.Background(), "x"); err == nil || ran != 2 {
		t.Fatal("another word is accepted")
	}
}
